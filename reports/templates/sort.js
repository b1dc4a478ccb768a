'use strict';
// The page is whole without this: it only lets columns be sorted.
const exact = cell => cell.dataset.value === undefined ? undefined : Number(cell.dataset.value);

function compare(a, b, column) {
  const [one, other] = [a.cells[column], b.cells[column]];
  const [x, y] = [exact(one), exact(other)];
  if (x !== undefined && y !== undefined) return x - y;
  if (x !== undefined || y !== undefined) return x === undefined ? -1 : 1;
  return one.textContent.localeCompare(other.textContent, 'en', { numeric: true });
}

function sort(table, head) {
  const first = head.classList.contains('n') ? 'descending' : 'ascending';
  const other = first === 'ascending' ? 'descending' : 'ascending';
  const order = head.getAttribute('aria-sort') === first ? other : first;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', order);
  const sign = order === 'ascending' ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => sign * compare(a, b, head.cellIndex));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll('table[data-sortable]')) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    button.addEventListener('click', () => sort(table, head));
    head.append(button);
  }
}
