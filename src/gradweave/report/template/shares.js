/* Shares of the gradient: the part that each server roots, compared with equal parts. */

/** Whether pieces differ in size by more than the rounding of the page's data. */
function sizesDiffer(schedule) {
  const [least, most] = pieceSizes(schedule);
  return schedule.root.length > 0 && most > least * (1 + 1e-5);
}

/** Whether servers root different shares of the gradient. */
function rootsDiffer({ rooted, root, gets }) {
  if (gets) return false; // a demand says who is to have what
  const shares = rooted.map(({ share }) => share);
  return root.length > 0 && Math.max(...shares) - Math.min(...shares) > 1e-5;
}

/** A share in percent, with enough digits to compare. */
function shareText(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`;
}

/** Fills the table of the shares that servers root. */
function showShares(schedule, table, hint) {
  const { rooted, servers } = schedule;
  const equal = 1 / servers.length, most = Math.max(equal, ...rooted.map(({ share }) => share));
  const none = rooted.filter(({ share }) => !share).length;
  hint.textContent = `Equal parts would be ${shareText(equal)} for each of ${counted(servers.length, "server")}, the line in each bar. `
    + (none ? `${counted(none, "server")} root${none === 1 ? "s" : ""} nothing: ${none === 1 ? "it adds its" : "they add their"} part to the others' sums and get${none === 1 ? "s" : ""} them back.` : "Every server roots some.");
  const head = element("tr", "", element("thead", "", table));
  const told = schedule.named ? ["rank", "id"] : [];
  for (const text of ["server", ...told, "pieces", "share", "vs equal", ""]) element("th", text, head).scope = "col";
  const body = element("tbody", "", table);
  rooted.forEach(({ share, pieces }, rank) => {
    const row = element("tr", "", body);
    element("th", schedule.name(servers[rank]), row).scope = "row";
    if (schedule.named) for (const number of [rank, servers[rank]]) element("td", String(number), row);
    element("td", pieces.toLocaleString("en"), row);
    element("td", share ? shareText(share) : "0", row);
    element("td", share ? `×${(share / equal).toFixed(2)}` : "–", row);
    const bar = element("i", "", element("td", "", row), "amount");
    bar.style.setProperty("--amount", (share / most).toFixed(4));
    bar.style.setProperty("--equal", (equal / most).toFixed(4));
  });
}
