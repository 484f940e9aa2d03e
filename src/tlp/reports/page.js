"use strict";
// Everything is on the page without this script: it adds tips, a choice of task and sorting.

const tip = document.getElementById("tip");
const SVG = "http://www.w3.org/2000/svg";

function marksOf(plot) {
  const marks = [];
  for (const path of plot.querySelectorAll("[data-labels]")) {
    const labels = path.dataset.labels.split("\n\n");
    path.getAttribute("d").split("M").slice(1).forEach((part, index) => {
      const [x, y] = part.split(/[ h]/).map(Number);
      marks.push({x, y, label: labels[index]});
    });
  }
  return marks;
}

function nearest(marks, x, y, reach) {
  let found = null;
  let least = reach * reach;
  for (const mark of marks) {
    const distance = (mark.x - x) ** 2 + (mark.y - y) ** 2;
    if (distance < least) {
      least = distance;
      found = mark;
    }
  }
  return found;
}

function hideTip(ring) {
  tip.hidden = true;
  ring.setAttribute("visibility", "hidden");
}

for (const plot of document.querySelectorAll("svg.plot")) {
  if (!plot.querySelector("[data-labels]")) continue;
  let marks = null;
  const ring = document.createElementNS(SVG, "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", "5");
  ring.setAttribute("visibility", "hidden");
  plot.append(ring);
  plot.addEventListener("pointermove", (event) => {
    marks ??= marksOf(plot);
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(plot.getScreenCTM().inverse());
    const mark = nearest(marks, at.x, at.y, 24);
    if (!mark) return hideTip(ring);
    ring.setAttribute("cx", mark.x);
    ring.setAttribute("cy", mark.y);
    ring.setAttribute("visibility", "visible");
    tip.textContent = mark.label;
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, room))}px`;
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < innerHeight;
    tip.style.top = `${fits ? below : event.clientY - tip.offsetHeight - 12}px`;
  });
  plot.addEventListener("pointerleave", () => hideTip(ring));
}

const picker = document.getElementById("picker");
if (picker) {
  const choice = picker.querySelector("select");
  const choose = () => {
    for (const group of document.querySelectorAll(".cards")) {
      group.classList.toggle("single", choice.value !== "");
      for (const card of group.children) {
        card.hidden = choice.value !== "" && card.dataset.task !== choice.value;
      }
      const none = group.nextElementSibling;
      if (none?.classList.contains("none")) {
        none.hidden = [...group.children].some((card) => !card.hidden);
      }
    }
  };
  picker.hidden = false;
  choice.addEventListener("change", choose);
  choose();
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const numeric = !isNaN(x) && !isNaN(y);
        return (down ? -1 : 1) * (numeric ? x - y : x.localeCompare(y));
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
