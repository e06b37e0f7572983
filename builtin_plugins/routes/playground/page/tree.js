// A conversation: a tree of messages. Editing and regenerating add branches, nothing is replaced.
//
// conversation: { id, title, created, updated, settings, root, nodes: { id: node } }
// node: { id, parent, role, text, files, children, selected, ... }; `selected` is the child whose
// branch is displayed. `root` is a node without a message.

const ROOT = "root";
const ROLES = ["user", "assistant", "tool"];
const MAX_TITLE = 60;

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");

export function newConversation(settings = {}) {
  const now = Date.now();
  const root = { id: ROOT, parent: null, role: "root", children: [], selected: null };
  return { id: newId(), title: "", created: now, updated: now, settings, nodes: { [ROOT]: root } };
}

/** Adds a message after another one, or a first message, and selects it. */
export function addNode(conversation, parent, fields) {
  const node = {
    id: newId(),
    parent: parent?.id ?? ROOT,
    text: "",
    files: [],
    children: [],
    selected: null,
    created: Date.now(),
    ...fields,
  };
  conversation.nodes[node.id] = node;
  const above = conversation.nodes[node.parent];
  above.children.push(node.id);
  above.selected = node.id;
  conversation.updated = node.created;
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node);
  return node;
}

/** Removes a message and all after it; another branch is selected if there is one. */
export function removeNode(conversation, node) {
  for (const child of [...node.children]) removeNode(conversation, conversation.nodes[child]);
  const above = conversation.nodes[node.parent];
  above.children = above.children.filter((id) => id !== node.id);
  if (above.selected === node.id) above.selected = above.children.at(-1) ?? null;
  delete conversation.nodes[node.id];
}

/** Returns the displayed messages, from the first to the last. */
export function pathOf(conversation) {
  const path = [];
  let node = conversation.nodes[ROOT];
  while (node.selected) {
    node = conversation.nodes[node.selected];
    path.push(node);
  }
  return path;
}

export const parentOf = (conversation, node) =>
  node.parent === ROOT ? null : conversation.nodes[node.parent];

/** Returns the alternatives of a message, itself included. */
export const siblingsOf = (conversation, node) =>
  conversation.nodes[node.parent].children.map((id) => conversation.nodes[id]);

export function select(conversation, node) {
  conversation.nodes[node.parent].selected = node.id;
}

/** Returns the tool calls of the last answer that have no result yet. */
export function pendingCalls(conversation) {
  const path = pathOf(conversation);
  const last = path.findLastIndex((node) => node.role !== "tool");
  const answer = path[last];
  if (answer?.role !== "assistant" || answer.note) return [];
  return (answer.calls ?? []).slice(path.length - 1 - last);
}

function contentOf(node) {
  const texts = node.files.filter((file) => file.kind === "text");
  const images = node.files.filter((file) => file.kind === "image");
  const text = [...texts.map((file) => `File ${file.name}:\n\n${file.text}`), node.text]
    .filter(Boolean)
    .join("\n\n");
  if (!images.length) return text;
  const parts = images.map((file) => ({ type: "image_url", image_url: { url: file.url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function messageOf(node) {
  const content = contentOf(node);
  if (node.role === "tool") return { role: "tool", tool_call_id: node.callId, content };
  if (node.calls?.length) return { role: "assistant", content, tool_calls: node.calls };
  return { role: node.role, content };
}

/** Returns the messages of a request that continues the conversation after a node. */
export function messagesOf(conversation, node, system = "") {
  const messages = [];
  for (let each = node; each; each = parentOf(conversation, each))
    messages.unshift(messageOf(each));
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

function titleOf(node) {
  const text = (node.text || node.files[0]?.name || "").trim().replace(/\s+/g, " ");
  return text.length > MAX_TITLE ? `${text.slice(0, MAX_TITLE - 1)}…` : text;
}

// --- Export and import

const HEADINGS = { user: "You", assistant: "Answer", tool: "Result" };

/** Returns the displayed messages as Markdown. */
export function markdownOf(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  for (const node of pathOf(conversation)) {
    parts.push(`## ${HEADINGS[node.role]}`);
    parts.push(...node.files.map((file) => `(file ${file.name})`));
    if (node.text) parts.push(node.text);
    for (const { function: called } of node.calls ?? [])
      parts.push(`Call of \`${called.name}\`:\n\n    ${called.arguments}`);
  }
  return `${parts.join("\n\n")}\n`;
}

export const exported = (conversations) =>
  JSON.stringify({ format: "engine-conversations", version: 1, conversations }, null, 1);

/** Returns the conversations of an exported file, with new ids. Throws an error that says why
 *  not. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON. Choose a file that Export has written.");
  }
  if (file?.format !== "engine-conversations" || !Array.isArray(file.conversations))
    throw new Error("The file has no conversations. Choose a file that Export has written.");
  return file.conversations.map(readConversation);
}

const string = (value) => (typeof value === "string" ? value : "");

function readConversation(found, index) {
  const wrong = new Error(`Conversation ${index + 1} of the file is damaged. Export it again.`);
  const given = found?.nodes;
  if (!given?.[ROOT]) throw wrong;
  const conversation = newConversation(
    found.settings && typeof found.settings === "object" ? found.settings : {},
  );
  conversation.title = string(found.title).slice(0, MAX_TITLE);
  conversation.pinned = found.pinned === true;
  conversation.created = Number(found.created) || conversation.created;
  conversation.updated = Number(found.updated) || conversation.updated;
  const read = (id, parent) => {
    const node = Object.hasOwn(given, id) ? given[id] : null;
    const children = Array.isArray(node?.children) ? node.children : [];
    const target = conversation.nodes[ROOT];
    if (!node || id === "__proto__" || Object.hasOwn(conversation.nodes, id) !== (id === ROOT))
      throw wrong;
    if (id === ROOT) Object.assign(target, { children, selected: node.selected ?? null });
    else if (ROLES.includes(node.role))
      conversation.nodes[id] = readNode(node, id, parent, children);
    else throw wrong;
    for (const child of children) read(String(child), id);
    const made = conversation.nodes[id];
    if (!made.children.includes(made.selected)) made.selected = made.children.at(-1) ?? null;
  };
  read(ROOT, null);
  return conversation;
}

function readNode(node, id, parent, children) {
  const files = Array.isArray(node.files) ? node.files : [];
  const calls = Array.isArray(node.calls) ? node.calls : [];
  const texts = Object.fromEntries(
    ["text", "reasoning", "footer", "note", "model", "callId", "callName"].map((name) => [
      name,
      string(node[name]),
    ]),
  );
  return {
    ...texts,
    id,
    parent,
    children,
    role: node.role,
    selected: node.selected ?? null,
    created: Number(node.created) || 0,
    files: files
      .filter((file) => file?.kind === "text" || /^data:image\//.test(file?.url ?? ""))
      .map(({ kind, name, text, url }) => ({
        kind: kind === "text" ? "text" : "image",
        name: string(name),
        text: string(text),
        url: string(url),
      })),
    calls: calls
      .filter((call) => typeof call?.function?.arguments === "string")
      .map((call) => ({
        id: string(call.id),
        type: "function",
        function: { name: string(call.function.name), arguments: call.function.arguments },
      })),
  };
}
