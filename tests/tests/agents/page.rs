//! Writes and checks `docs/agents.md`, which is the expected result of the matrix.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::PathBuf,
    process::Command,
};

use sdk_tests::agents::RealAgent;

use crate::{
    cell::{Cell, Face, Seen},
    configuration,
    known::{self, CI, KNOWN, RARE},
    rows::ROWS,
    runner::RELEASED,
    tally::Tally,
};

const BEGIN: &str = "<!-- matrix: written by the suite -->";
const END: &str = "<!-- end of matrix -->";
/// Begins the line about the last run of the whole matrix.
const WHOLE: &str = "Last run of the whole matrix: ";
/// Begins a line about a later run of some of its cells, which ends with their rows.
const LATER: &str = "Run since then: ";
/// Separates the counts of such a line from the rows.
const ROWS_OF_RUN: &str = " Rows: ";
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
/// the last run of the whole matrix and the later runs of single rows together had all cells.
pub(crate) fn check() {
    let page = fs::read_to_string(path()).expect("the page about agents");
    for agent in RealAgent::ALL {
        let version = format!("`{}` {}", agent.package(), agent.version());
        assert!(page.contains(&version), "docs/agents.md does not say {version}");
    }
    for known in KNOWN.iter().chain(RARE) {
        assert!(page.contains(known.why), "docs/agents.md does not say: {}", known.why);
    }
    for pattern in CI.iter().chain(KNOWN.iter().chain(RARE).map(|known| &known.cells)) {
        let cells = crate::cells();
        assert!(cells.iter().any(|cell| known::matches(pattern, cell)), "no cell is named {pattern}");
    }
    let in_ci = crate::cells().iter().filter(|cell| known::in_ci(cell)).count();
    assert!(
        page.contains(&format!("CI runs {in_ci} cells")),
        "docs/agents.md does not say: CI runs {in_ci} cells"
    );
    configuration::check(&page);
    let (_, matrix, _) = parts(&page);
    let missing = not_run(matrix, &crate::cells());
    assert!(missing.is_empty(), "docs/agents.md has no run of these rows: {}", missing.join(", "));
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

/// The rows without a run: the run of the whole matrix was before they existed, and no later run had all their cells.
///
/// A run of the whole matrix names no rows, but says how many cells it had.
fn not_run(matrix: &str, cells: &[Cell]) -> Vec<&'static str> {
    let later = later_rows(matrix);
    let whole = matrix.lines().find_map(|line| cells_of_run(line.strip_prefix(WHOLE)?)).unwrap_or(0);
    let is_later = |cell: &&Cell| later.contains(cell.row);
    let rest = cells.iter().filter(|cell| !is_later(cell)).map(|cell| cell.row);
    let mut missing: Vec<&'static str> = rest.collect();
    if missing.len() <= whole {
        return Vec::new();
    }
    missing.dedup();
    missing
}

/// The rows that a run after that of the whole matrix had with all their cells.
fn later_rows(matrix: &str) -> BTreeSet<String> {
    let lines = matrix.lines().filter(|line| line.starts_with(LATER));
    let rows = lines.filter_map(|line| line.split_once(ROWS_OF_RUN));
    let names = rows.flat_map(|(_, rows)| rows.trim_end_matches('.').split(", "));
    // A row of which only some cells were run has their number behind its name.
    let whole = names.filter_map(|name| name.strip_prefix('`')?.strip_suffix('`'));
    whole.map(str::to_owned).collect()
}

/// How many cells a run had, from the line about it.
fn cells_of_run(line: &str) -> Option<usize> {
    let (_, counts) = line.rsplit_once(": ")?;
    let (_, rest) = counts.split_once(" of ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Checks that the rows without a run are found.
pub(crate) fn check_lines() {
    let face = Face::Mock;
    let cells: Vec<Cell> = ["one", "two", "three"]
        .into_iter()
        .flat_map(|row| RealAgent::ALL.map(|agent| Cell { row, agent, face }))
        .collect();
    let run = |counts: &str| format!("2026-01-02, Node.js v20.1.2, released server 0.4.2: {counts}");
    let whole = |counts: &str| format!("\n{WHOLE}{}\n", run(counts));
    let later = |rows: &str| format!("\n{LATER}{}{ROWS_OF_RUN}{rows}.\n", run("5 of 5 cells passed."));
    assert_eq!(not_run(&whole("15 of 15 cells passed."), &cells), [""; 0]);
    assert_eq!(not_run(&whole("14 of 15 cells passed, 1 with a rare defect."), &cells), [""; 0]);
    assert_eq!(not_run(&whole("10 of 10 cells passed."), &cells), ["one", "two", "three"]);
    assert_eq!(not_run(&(whole("10 of 10 cells passed.") + &later("`three`")), &cells), [""; 0]);
    assert_eq!(
        not_run(&(whole("10 of 10 cells passed.") + &later("`three` (4 cells)")), &cells),
        ["one", "two", "three"]
    );
    assert_eq!(not_run(&later("`one`, `three`"), &cells), ["two"]);
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

/// Replaces the cells of the page that were run, and says which run they are from.
///
/// A run of the whole matrix replaces the lines about all earlier runs. A run of some cells adds a line with their rows.
pub(crate) fn write(tallies: &[Tally], node: &str) {
    let page = fs::read_to_string(path()).expect("the page about agents");
    let (before, old, after) = parts(&page);
    let mut expected = Expected::read(old);
    for tally in tallies {
        expected.set(&tally.cell, verdict(tally));
    }
    let run = run_line(tallies, node);
    let mut text = String::new();
    // Writing into a string does not fail.
    if tallies.len() == crate::cells().len() {
        let _ = write!(text, "\n{WHOLE}{run}\n");
    } else {
        let is_run = |line: &&str| line.starts_with(WHOLE) || line.starts_with(LATER);
        old.lines().filter(is_run).for_each(|line| {
            let _ = write!(text, "\n{line}\n");
        });
        let _ = write!(text, "\n{LATER}{run}{ROWS_OF_RUN}{}.\n", rows_of(tallies).join(", "));
    }
    text += &expected.table();
    fs::write(path(), format!("{before}{BEGIN}\n{text}\n{END}{after}")).expect("the page can be written");
}

/// When a run was, and how many of its cells passed.
fn run_line(tallies: &[Tally], node: &str) -> String {
    let passed = tallies.iter().filter(|tally| !matches!(tally.seen, Seen::Failed(_))).count();
    let rare = match tallies.iter().filter(|tally| tally.rare > 0).count() {
        0 => String::new(),
        rare => format!(", {rare} with a rare defect"),
    };
    format!(
        "{}, Node.js {node}, released server {RELEASED}: {passed} of {} cells passed{rare}.",
        today(),
        tallies.len()
    )
}

/// The rows of these cells, with the number of cells if it is not all.
fn rows_of(tallies: &[Tally]) -> Vec<String> {
    let all = RealAgent::ALL.len() * Face::ALL.len();
    let counts = ROWS.iter().map(|row| {
        let cells = tallies.iter().filter(|tally| tally.cell.row == row.name).count();
        (row.name, cells)
    });
    let run = counts.filter(|(_, cells)| *cells > 0);
    run.map(|(name, cells)| match cells == all {
        true => format!("`{name}`"),
        false => format!("`{name}` ({cells} cells)"),
    })
    .collect()
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
    let text = match &tally.seen {
        Seen::Works => "works".to_owned(),
        Seen::Note(text) | Seen::Rare(text) => format!("works: {}", plain(text)),
        Seen::Cannot(whose, text) => format!("cannot ({}): {}", whose.name(), plain(text)),
        Seen::Failed(_) => match known::failure(&tally.cell) {
            Some(known) => format!("{FAILS} ({})", known.whose.name()),
            None => FAILS.to_owned(),
        },
    };
    match known::rare(&tally.cell) {
        Some(known) => format!("{text}; in some runs ({}): {}", known.whose.name(), known.why),
        None => text,
    }
}
