// What is wrong with the page for a reader, as a list of texts: findings of axe, a page wider than its window, a menu that is cut.
async () => {
  const { violations } = await axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] });
  const wrong = violations.map(({ id, help, nodes }) => {
    const places = nodes.slice(0, 3).map((each) => `${each.html.slice(0, 120)} (${each.any[0]?.message ?? ""})`);
    return `${id}: ${help}: ${nodes.length} of ${places.join(" | ")}`;
  });
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.body.querySelectorAll("*")].filter((each) => {
      return each.getBoundingClientRect().right > root.clientWidth + 1 && !each.closest(".wide");
    });
    const names = wide.slice(-3).map((each) => each.outerHTML.slice(0, 90));
    wrong.push(`the page is ${root.scrollWidth} px wide in ${root.clientWidth}: ${names.join(" | ")}`);
  }
  const menu = document.querySelector(".bar nav");
  if (menu && menu.scrollWidth > menu.clientWidth + 1) wrong.push(`the menu is ${menu.scrollWidth} px wide in ${menu.clientWidth}`);
  return wrong;
}
