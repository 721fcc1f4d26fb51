// Clicking a column heading sorts its table. The page is complete without this script.
const UNITS = { k: 1e3, M: 1e6, G: 1e9, MiB: 2 ** 20, GiB: 2 ** 30 };

function valueOf(row, column) {
  const cell = row.cells[column];
  if (!cell.classList.contains("number")) return cell.textContent;
  const found = cell.textContent.replaceAll(",", "").match(/^[<\s]*([-+]?[\d.]+)\s*([kMG](?:iB)?)?/);
  return found ? found[1] * (UNITS[found[2]] ?? 1) : null; // a dash is not a number
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
