"use strict";
const MOST_ROWS = 300; // of a table at once
const NEAR = 14; // pixels from a point within which it is meant
const MOST_NAMES = 6; // of points that lie on each other

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const code = button.closest("figure").querySelector("pre");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {  // a page from disk may not be allowed to: select it, so that Ctrl-C does it
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: press Ctrl-C";
    }
  });
}

// Where there is room beside a figure, its numbers are shown.
if (matchMedia("screen and (min-width: 75rem)").matches) {
  for (const details of document.querySelectorAll("section > figure > details, .explorer figure > details")) details.open = true;
}

// What scrolls says so, and in which direction there is more.
for (const box of document.querySelectorAll(".scroll")) {
  const pane = box.querySelector(".pane");
  const sign = box.querySelector(".sign");
  const update = () => {
    const beyond = [pane.scrollWidth - pane.clientWidth, pane.scrollHeight - pane.clientHeight];
    const right = beyond[0] - pane.scrollLeft > 2;
    const below = beyond[1] - pane.scrollTop > 2;
    box.classList.toggle("scrolls", Math.max(...beyond) > 2);
    box.classList.toggle("more-right", right);
    const ways = [right && "sideways \u2192", below && "down \u2193"].filter(Boolean);
    sign.textContent = ways.length ? `scroll ${ways.join(", ")}` : "\u00a0"; // keeps its height at the end
  };
  pane.addEventListener("scroll", update, { passive: true });
  const observer = new ResizeObserver(update);
  observer.observe(pane);
  observer.observe(pane.firstElementChild);
}

// Rows of a table by their names, those included that the page does not show at first.
function bareName(text) { return text.normalize("NFKC").toLowerCase(); }

function rowOf(cells) {
  const row = document.createElement("tr");
  row.append(...cells.map((text, place) => {
    const cell = document.createElement(place ? "td" : "th");
    if (!place) cell.scope = "row";
    const name = document.createElement("bdi");
    name.textContent = text;
    cell.append(name);
    return cell;
  }));
  return row;
}

for (const box of document.querySelectorAll(".search")) {
  const field = box.querySelector("input");
  const body = box.nextElementSibling.querySelector("tbody");
  const rows = [...body.rows].map((row) => ({ name: bareName(row.cells[0].textContent), make: () => row }));
  for (const cells of JSON.parse(box.querySelector("script").textContent)) {
    rows.push({ name: bareName(cells[0]), make: () => rowOf(cells) });
  }
  const update = () => {
    const found = rows.filter((row) => row.name.includes(bareName(field.value.trim())));
    body.replaceChildren(...found.slice(0, MOST_ROWS).map((row) => row.make()));
    const shown = found.length > MOST_ROWS ? `, of which ${MOST_ROWS} are shown` : "";
    box.querySelector("output").textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")}${shown}`;
  };
  field.addEventListener("input", update);
  update();
}

// The names of points, where somebody points at them or touches them.
for (const data of document.querySelectorAll("script.points")) {
  const drawing = data.parentElement;
  const points = JSON.parse(data.textContent);
  const picture = drawing.querySelector("svg");
  const tip = document.createElement("div");
  const ring = document.createElement("div");
  tip.className = "tip";
  ring.className = "ring";
  tip.hidden = ring.hidden = true;
  drawing.append(ring, tip);

  const show = (event) => {
    const frame = picture.getBoundingClientRect();
    const scale = frame.width / picture.viewBox.baseVal.width;
    const x = event.clientX - frame.left;
    const y = event.clientY - frame.top;
    const distance = (point) => Math.hypot(scale * point[0] - x, scale * point[1] - y);
    let nearest = points[0];
    for (const point of points) if (distance(point) < distance(nearest)) nearest = point;
    tip.hidden = ring.hidden = distance(nearest) > NEAR;
    if (tip.hidden) return;
    const names = points.filter((point) => Math.hypot(point[0] - nearest[0], point[1] - nearest[1]) < 1).map((point) => point[2]);
    const lines = names.slice(0, MOST_NAMES);
    if (names.length > MOST_NAMES) lines.push(`and ${names.length - MOST_NAMES} more`);
    tip.replaceChildren(...lines.map((text) => {
      const line = document.createElement("bdi");
      line.textContent = text;
      return line;
    }));
    const [left, top] = [scale * nearest[0], scale * nearest[1]];
    ring.style.left = `${left}px`;
    ring.style.top = `${top}px`;
    tip.style.left = `${Math.max(0, Math.min(left + 10, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${top + 12}px`;
  };
  const hide = () => { tip.hidden = ring.hidden = true; };
  picture.addEventListener("pointermove", show);
  picture.addEventListener("pointerdown", show);
  drawing.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
}
