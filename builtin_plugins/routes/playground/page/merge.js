// Nodes that have grown: what is as before stays in the page, so that only the end is laid out.

/** Returns whether two nodes differ only in what they contain. */
const isSameElement = (node, next) =>
  node.nodeType === Node.ELEMENT_NODE && node.cloneNode(false).isEqualNode(next.cloneNode(false));

/** Makes the last children of a parent equal to newer nodes; returns these children. */
export function mergeNodes(parent, old, next) {
  let same = 0;
  while (same < old.length && same < next.length && old[same].isEqualNode(next[same])) same += 1;
  const merged = old.slice(0, same);
  if (same < old.length && same < next.length && isSameElement(old[same], next[same])) {
    mergeNodes(old[same], [...old[same].childNodes], [...next[same].childNodes]);
    merged.push(old[same]);
  }
  for (const node of old.slice(merged.length)) node.remove();
  const added = next.slice(merged.length);
  parent.append(...added);
  return [...merged, ...added];
}
