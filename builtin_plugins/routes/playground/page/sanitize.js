// HTML of our own libraries (Markdown, code colours) becomes nodes here, and nowhere else.

import "./vendor/dompurify/purify.min.js";

const RULES = {
  ALLOWED_TAGS: [
    ...[
      "a",
      "blockquote",
      "br",
      "code",
      "del",
      "em",
      "h1",
      "h2",
      "h3",
      "h4",
      "h5",
      "h6",
      "hr",
      "li",
      "ol",
      "p",
      "pre",
      "s",
    ],
    ...["span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ],
  ALLOWED_ATTR: ["class", "data-language", "data-math", "data-display", "href", "start", "title"],
  ADD_URI_SAFE_ATTR: ["data-math", "data-language"], // never used as an address
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Returns the allowed part of an HTML text as nodes. */
export const sanitize = (html) => globalThis.DOMPurify.sanitize(html, RULES);
