// The legend brings a series into colour and to the front; a click on a table's head sorts it.
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const all = document.querySelectorAll(`[data-series="${button.dataset.series}"]`);
    const muted = !button.classList.contains("muted");
    for (const element of all) {
      element.classList.toggle("muted", muted);
      if (element.matches(".legend button")) element.setAttribute("aria-pressed", String(!muted));
      if (element.matches(".chart g") && !muted) element.parentNode.append(element);
    }
  });
}
for (const head of document.querySelectorAll(".sortable th:not(.bar)")) {
  head.addEventListener("click", () => {
    const rows = [...head.closest("table").tBodies[0].rows];
    const up = head.getAttribute("aria-sort") !== "ascending";
    const column = head.cellIndex;
    const text = (row) => row.cells[column].textContent.trim();
    const value = (row) => parseFloat(text(row).replace(/[,>\s]/g, ""));
    const known = rows.filter((row) => text(row) !== "–");
    const numeric = head.classList.contains("n") && known.every((row) => !Number.isNaN(value(row)));
    known.sort((a, b) => (numeric ? value(a) - value(b) : text(a).localeCompare(text(b))) * (up ? 1 : -1));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    head.closest("table").tBodies[0].append(...known, ...rows.filter((row) => text(row) === "–"));
  });
}
