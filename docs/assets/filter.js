// A field above long tables: rows without the typed words are hidden.
document.addEventListener("DOMContentLoaded", () => {
  const rows = document.querySelectorAll(".rst-content tbody tr");
  if (rows.length < 60) return;
  const field = document.createElement("input");
  field.type = "search";
  field.className = "filter";
  field.placeholder = "Filter the rows of this page";
  field.setAttribute("aria-label", field.placeholder);
  document.querySelector(".rst-content h1").after(field);
  const texts = Array.from(rows, (row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); });
  });
});
