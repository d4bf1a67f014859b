// Sphinx's search: the course first, then its instruments, and last the names in the reference; a page whose title
// has the words comes before one that only uses them.
const asked = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\s+/).map((word) => word.replace(/s$/, ""));
var Scorer = {
    objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
    title: 15, partialTitle: 7, term: 5, partialTerm: 2,
    score: ([page, title, anchor, description, score]) =>
        score + (/^nbs\/\d/.test(page) ? 100 : /^nbs\//.test(page) ? 50 : 0)
        + (/^nbs\//.test(page) && asked.every((word) => title.toLowerCase().includes(word)) ? 60 : 0),
};
