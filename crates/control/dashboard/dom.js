// Elements. Text from the API is never parsed as HTML.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets text only if it differs: a screen reader announces live regions on each write, and a
// selection is lost.
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// Keeps one element for each key, in order, without replacing those that stay: focus and selection
// survive an update.
export function keyed(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    old.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

// A table of names and values that is updated in place: pairs of name, value and, if there is more
// to say, a sentence.
export function facts(list, pairs) {
  keyed(list, pairs.filter(([, value]) => value !== null && value !== undefined), ([name]) => name,
    ([name]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span"), el("small"))),
    (row, [, value, more]) => {
      text(row.querySelector("span"), value);
      text(row.querySelector("small"), more || "");
    });
}

// A table with a caption for screen readers; rows are arrays of text, the first cell is the head.
export function table(caption, columns) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, ...columns.map((name, index) =>
        el("th", { scope: "col", class: index ? "number" : null }, name)))),
      el("tbody")));
}

// Rows with the same first cell differ in the second one if `key` says so.
export function rows(holder, items, key = (row) => row[0]) {
  keyed(holder.querySelector("tbody"), items, key,
    (row) => el("tr", {}, ...row.map((_, index) =>
      index ? el("td", { class: "number" }) : el("th", { scope: "row" }))),
    (line, row) => row.forEach((value, index) => text(line.children[index], value)));
}

// Bars with their share of the whole, which is their sum if it is not given: [name, value, shown].
export function bars(holder, items, given) {
  const whole = given ?? items.reduce((sum, [, value]) => sum + value, 0);
  keyed(holder, items, ([name]) => name,
    ([name]) => el("div", { class: "bar" }, el("span", {}, name),
      el("progress", { max: "100", "aria-label": name }), el("b")),
    (bar, [, value, shown]) => {
      bar.querySelector("progress").value = whole ? 100 * value / whole : 0;
      text(bar.querySelector("b"), shown);
    });
}

// A card over two columns, where there are three.
export function wide(node) {
  node.classList.add("wide");
  return node;
}

export function card(title, ...content) {
  return el("section", { class: "card", "aria-label": title }, el("h2", {}, title), ...content);
}
