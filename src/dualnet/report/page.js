// Clicking a column heading sorts its table. The page is complete without this script.
function valueOf(row, column) {
  const cell = row.cells[column];
  if (!cell.classList.contains("number")) return cell.textContent;
  return "value" in cell.dataset ? Number(cell.dataset.value) : null; // a dash is not a number
}

function sort(table, column, direction) {
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // dashes last
    return direction * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const order = head.ariaSort === first ? second : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.ariaSort = order;
      sort(table, column, order === "ascending" ? 1 : -1);
    });
  });
}
