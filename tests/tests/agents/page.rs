//! Writes and checks `docs/agents.md`, which is the expected result of the matrix.

use std::{collections::BTreeMap, fmt::Write, fs, path::PathBuf, process::Command};

use sdk_tests::agents::RealAgent;

use crate::{
    cell::{Cell, Face, Seen},
    known::{self, CI, KNOWN},
    rows::ROWS,
    runner::RELEASED,
    tally::Tally,
};

const BEGIN: &str = "<!-- matrix: written by the suite -->";
const END: &str = "<!-- end of matrix -->";
/// Begins the line about the last run of the whole matrix.
const WHOLE: &str = "Last run of the whole matrix: ";
/// Begins the line about the last run of some of its cells.
const SOME: &str = "Last run of single cells: ";
/// The text of a cell that has never run.
const NOT_RUN: &str = "not run";
const FAILS: &str = "**fails**";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/agents.md")
}

/// The page, in the parts before, inside and after the matrix.
fn parts(page: &str) -> (&str, &str, &str) {
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the matrix");
    let (matrix, after) = rest.split_once(END).expect("the matrix has an end");
    (before, matrix, after)
}

/// Fails unless the page has every agent with the version that is run, every row, every cell and every known failure, and
/// the last run of the whole matrix had all cells.
pub(crate) fn check() {
    let page = fs::read_to_string(path()).expect("the page about agents");
    for agent in RealAgent::ALL {
        let version = format!("`{}` {}", agent.package(), agent.version());
        assert!(page.contains(&version), "docs/agents.md does not say {version}");
    }
    for known in KNOWN {
        assert!(page.contains(known.why), "docs/agents.md does not say: {}", known.why);
    }
    for pattern in CI.iter().chain(KNOWN.iter().map(|known| &known.cells)) {
        let cells = crate::cells();
        assert!(cells.iter().any(|cell| known::matches(pattern, cell)), "no cell is named {pattern}");
    }
    let (_, matrix, _) = parts(&page);
    let whole = matrix.lines().find_map(|line| line.strip_prefix(WHOLE));
    let whole = whole.expect("docs/agents.md says when the matrix was run");
    let cells = crate::cells().len();
    let failed = failures(whole, cells);
    let failed = failed.unwrap_or_else(|| panic!("docs/agents.md: no run of all {cells} cells: {whole}"));
    let known = crate::cells().iter().filter(|cell| known::failure(cell).is_some()).count();
    assert!(
        failed <= known,
        "docs/agents.md: {failed} cells failed in the last run, {known} are known to fail"
    );
    let expected = Expected::read(matrix);
    for cell in crate::cells() {
        let text = expected.of(&cell);
        assert!(text != NOT_RUN, "docs/agents.md has no result of {cell}: run it with --write");
        let known = known::failure(&cell);
        assert!(
            !text.starts_with(FAILS) || known.is_some(),
            "docs/agents.md says that {cell} fails, and known.rs does not say why"
        );
        assert!(known.is_none() || !known::in_ci(&cell), "CI runs {cell}, which is known to fail");
    }
    for row in expected.0.keys().map(|(row, _)| row) {
        assert!(
            ROWS.iter().any(|known| known.name == row),
            "docs/agents.md has a row {row}, the suite has not"
        );
    }
}

/// How many cells failed in a run of all `cells`, from the line about it; `None` if the run had another number of cells.
fn failures(line: &str, cells: usize) -> Option<usize> {
    let (_, counts) = line.rsplit_once(": ")?;
    let (passed, rest) = counts.split_once(" of ")?;
    let total: usize = rest.split(' ').next()?.parse().ok()?;
    total.checked_sub(passed.parse().ok()?).filter(|_| total == cells)
}

/// Checks that the failures of a run are read from its line.
pub(crate) fn check_lines() {
    let line = |counts: &str| format!("2026-01-02, Node.js v20.1.2, released server 0.4.2: {counts}");
    assert_eq!(failures(&line("500 of 500 cells passed."), 500), Some(0));
    assert_eq!(failures(&line("499 of 500 cells passed."), 500), Some(1));
    assert_eq!(failures(&line("500 of 500 cells passed."), 510), None);
    assert_eq!(failures("never.", 500), None);
}

/// How a result differs from the page, if it does. Known failures may happen or not.
pub(crate) fn differences(tallies: &[Tally]) -> Vec<String> {
    let page = fs::read_to_string(path()).expect("the page about agents");
    let expected = Expected::read(parts(&page).1);
    let unknown = tallies.iter().filter(|tally| known::failure(&tally.cell).is_none());
    let differs = unknown.filter_map(|tally| {
        let (page, now) = (expected.of(&tally.cell), verdict(tally));
        (page != now).then(|| format!("{}: docs/agents.md says \"{page}\", not \"{now}\"", tally.cell))
    });
    differs.collect()
}

/// Replaces the cells of the page that were run, and the line about the last run.
pub(crate) fn write(tallies: &[Tally], node: &str) {
    let page = fs::read_to_string(path()).expect("the page about agents");
    let (before, old, after) = parts(&page);
    let mut expected = Expected::read(old);
    for tally in tallies {
        expected.set(&tally.cell, verdict(tally));
    }
    let is_whole = tallies.len() == crate::cells().len();
    let passed = tallies.iter().filter(|tally| !matches!(tally.seen, Seen::Failed(_))).count();
    let run = format!(
        "{}, Node.js {node}, released server {RELEASED}: {passed} of {} cells passed.",
        today(),
        tallies.len()
    );
    let line = |prefix: &str| old.lines().find_map(|line| line.strip_prefix(prefix)).map(str::to_owned);
    let whole = if is_whole { Some(run.clone()) } else { line(WHOLE) };
    let mut text = format!("\n{WHOLE}{}\n", whole.unwrap_or_else(|| "never.".to_owned()));
    if !is_whole {
        // Writing into a string does not fail.
        let _ = write!(text, "\n{SOME}{run}\n");
    }
    text += &expected.table();
    fs::write(path(), format!("{before}{BEGIN}\n{text}\n{END}{after}")).expect("the page can be written");
}

/// The date, in UTC.
fn today() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output().expect("a date");
    String::from_utf8_lossy(&date.stdout).trim().to_owned()
}

/// What the page says, by row and agent, on each server.
struct Expected(BTreeMap<(String, usize), [String; 2]>);

impl Expected {
    fn read(matrix: &str) -> Self {
        let mut cells = BTreeMap::new();
        for line in matrix.lines().filter(|line| line.starts_with("| `")) {
            let mut columns = line.trim_matches('|').split(" | ").map(str::trim);
            let Some(row) = columns.next().and_then(|name| name.split('`').nth(1)) else { continue };
            for (index, text) in columns.enumerate() {
                let text = text.trim_end_matches('|').trim();
                let faces = text.strip_prefix("mock: ").and_then(|text| text.split_once("; released: "));
                let (mock, released) = faces.unwrap_or((text, text));
                cells.insert((row.to_owned(), index), [mock.to_owned(), released.to_owned()]);
            }
        }
        Self(cells)
    }

    fn of(&self, cell: &Cell) -> &str {
        self.0.get(&key(cell)).map_or(NOT_RUN, |faces| &faces[face(cell)])
    }

    fn set(&mut self, cell: &Cell, text: String) {
        let faces = self.0.entry(key(cell)).or_insert_with(|| [NOT_RUN, NOT_RUN].map(str::to_owned));
        faces[face(cell)] = text;
    }

    fn table(&self) -> String {
        let mut text = String::from("\n| row |");
        for agent in RealAgent::ALL {
            // Writing into a string does not fail.
            let _ = write!(text, " {agent} |");
        }
        text += "\n|---|---|---|---|---|---|\n";
        for row in ROWS {
            let _ = write!(text, "| `{}` |", row.name);
            for agent in RealAgent::ALL {
                let [mock, released] = Face::ALL.map(|face| self.of(&Cell { row: row.name, agent, face }));
                let _ = match mock == released {
                    true => write!(text, " {mock} |"),
                    false => write!(text, " mock: {mock}; released: {released} |"),
                };
            }
            text += "\n";
        }
        text
    }
}

fn key(cell: &Cell) -> (String, usize) {
    let column = RealAgent::ALL.iter().position(|agent| *agent == cell.agent);
    (cell.row.to_owned(), column.expect("an agent has a column"))
}

fn face(cell: &Cell) -> usize {
    usize::from(cell.face == Face::Released)
}

/// The text of a cell on the page.
fn verdict(tally: &Tally) -> String {
    let plain = |text: &str| text.replace(['|', '\n'], " ");
    match &tally.seen {
        Seen::Works => "works".to_owned(),
        Seen::Note(text) => format!("works: {}", plain(text)),
        Seen::Cannot(text) => format!("cannot: {}", plain(text)),
        Seen::Failed(_) => match known::failure(&tally.cell) {
            Some(known) => format!("{FAILS} ({})", known.whose),
            None => FAILS.to_owned(),
        },
    }
}
