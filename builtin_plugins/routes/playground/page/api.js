// Requests to the server: streamed events, and errors that say what to do.

let apiKey = "";

/** Sets the API key. It stays in this page's memory. */
export function setKey(key) {
  apiKey = key;
}

export const hasKey = () => Boolean(apiKey);
export const headers = () => (apiKey ? { Authorization: `Bearer ${apiKey}` } : {});

/** An error with a text for the user, and the settings field that it is about. */
export class RequestError extends Error {
  constructor(text, field = "") {
    super(text);
    this.field = field;
  }
}

/** Sends a request; throws a `RequestError` unless it succeeds. */
export async function request(path, { body, ...options } = {}) {
  const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const type = body === undefined ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(path, { ...sent, ...options, headers: { ...headers(), ...type } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(
      "The server does not answer. Check that `engine serve` is running, then try again.",
    );
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export const requestJson = async (path, options) => (await request(path, options)).json();

async function errorOf(response) {
  const { status } = response;
  const body = await response.json().catch(() => ({}));
  const error = body.error ?? {};
  const message = error.message ?? `The server answered with status ${status}.`;
  if (status === 401) {
    const text = hasKey()
      ? "The server refused this API key. Correct it under Settings."
      : "This server requires an API key. Enter it under Settings.";
    return new RequestError(text, "key");
  }
  const wait = response.headers.get("Retry-After");
  const advice =
    {
      404: "Choose another model at the top of the page.",
      408: "Try again.",
      413: "Remove files, or start a new conversation.",
      429: `The server has too many requests. Try again${wait ? ` in ${wait} s` : ""}.`,
      503: `Try again${wait ? ` in ${wait} s` : " later"}.`,
    }[status] ?? (status >= 500 ? "The server's log says more. Try again." : "");
  const shorter =
    error.code === "context_length_exceeded"
      ? "Shorten the message, or start a new conversation."
      : "";
  return new RequestError(
    [message, shorter || advice].filter(Boolean).join(" "),
    error.param ?? "",
  );
}

/** Yields the events of a streamed answer; throws if the stream ends before its end marker. */
export async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done)
      throw new RequestError("The connection ended before the answer was complete. Regenerate it.");
    const blocks = (buffer + value).split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const data = block
        .split("\n")
        .find((line) => line.startsWith("data:"))
        ?.slice(5)
        .trim();
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error)
        throw new RequestError(
          `${event.error.message ?? "The answer was interrupted."} Regenerate it.`,
        );
      yield event;
    }
  }
}
