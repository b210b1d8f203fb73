// Every table of the page can be copied, and saved as CSV.

function csvOf(table) {
  const cell = (one) => {
    const text = one.dataset.value ?? one.textContent.trim();
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [...table.rows].map((row) => [...row.cells].map(cell).join(",")).join("\r\n") + "\r\n";
}

function saveAs(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

for (const button of document.querySelectorAll("button.csv")) {
  const table = document.getElementById(button.dataset.table);
  button.addEventListener("click", () => saveAs(csvOf(table), `${button.dataset.table}.csv`));
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const target = document.getElementById(button.dataset.table);
    const text = target.tagName === "TABLE" ? csvOf(target) : target.textContent;
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
}
