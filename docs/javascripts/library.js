// The library's table shows the rows that fit what is chosen above it; the address keeps the choice.
document.addEventListener("DOMContentLoaded", () => {
  const shelf = document.querySelector(".library");
  if (!shelf) return;
  const fields = [...shelf.querySelectorAll("[data-field]")];
  const rows = [...shelf.querySelectorAll("tbody tr")];
  const said = shelf.querySelector("output");
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const field of fields) field.value = wanted.get(field.dataset.field) || "";

  function fits(row) {
    return fields.every(({ value, dataset: { field } }) =>
      field === "name" ? row.cells[0].textContent.includes(value)
        : !value || row.dataset[field] === value);
  }

  function show() {
    let shown = 0;
    for (const row of rows) {
      row.hidden = !fits(row);
      shown += !row.hidden;
    }
    said.textContent = `${shown} of ${rows.length}`;
    const chosen = fields.filter((one) => one.value).map((one) => [one.dataset.field, one.value]);
    history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
  }

  for (const change of ["input", "change"]) shelf.addEventListener(change, show);
  show();
});
