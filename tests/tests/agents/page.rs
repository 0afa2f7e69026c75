//! Writes and checks `docs/agents.md`.

use std::{collections::BTreeMap, fmt::Write, fs, path::PathBuf};

use sdk_tests::agents::RealAgent;

use crate::{
    cell::{Face, Seen},
    known::{self, CI, KNOWN},
    rows::ROWS,
    runner::Report,
};

const BEGIN: &str = "<!-- matrix: written by the suite -->";
const END: &str = "<!-- end of matrix -->";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/agents.md")
}

/// Fails unless the page names every agent with the version that is run, every row and every known failure.
pub(crate) fn check() {
    let page = fs::read_to_string(path()).expect("the page about agents");
    for agent in RealAgent::ALL {
        let version = format!("`{}` {}", agent.package(), agent.version());
        assert!(page.contains(&version), "docs/agents.md does not say {version}");
    }
    for row in ROWS {
        assert!(page.contains(&format!("`{}`", row.name)), "docs/agents.md has no row {}", row.name);
    }
    for known in KNOWN {
        assert!(page.contains(known.why), "docs/agents.md does not say: {}", known.why);
    }
    for pattern in CI.iter().chain(KNOWN.iter().map(|known| &known.cells)) {
        let cells = crate::cells();
        assert!(cells.iter().any(|cell| known::matches(pattern, cell)), "no cell is named {pattern}");
    }
    for cell in crate::cells().iter().filter(|cell| known::in_ci(cell)) {
        assert!(known::failure(cell).is_none(), "CI runs {cell}, which is known to fail");
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    for row in rows.filter(|name| name.matches('_').count() >= 2) {
        assert!(
            ROWS.iter().any(|known| known.name == row),
            "docs/agents.md has a row {row}, the suite has not"
        );
    }
}

/// Replaces the tables of the page by what was seen. What was not run stays as it was.
pub(crate) fn write(results: &[Report]) {
    let page = fs::read_to_string(path()).expect("the page about agents");
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the matrix");
    let (old, after) = rest.split_once(END).expect("the matrix has an end");
    let text = format!("{before}{BEGIN}\n{}{END}{after}", matrix(results, &cells_of(old)));
    fs::write(path(), text).expect("the page can be written");
}

type Cells = BTreeMap<(String, usize), String>;

/// What the page said before, by row and column.
fn cells_of(old: &str) -> Cells {
    let mut cells = Cells::new();
    for line in old.lines().filter(|line| line.starts_with("| `")) {
        let mut columns = line.trim_matches('|').split(" | ").map(str::trim);
        let Some(row) = columns.next().and_then(|name| name.split('`').nth(1)) else { continue };
        for (index, text) in columns.enumerate() {
            cells.insert((row.to_owned(), index), text.trim_end_matches('|').trim().to_owned());
        }
    }
    cells
}

fn matrix(results: &[Report], old: &Cells) -> String {
    let mut text = String::from("\n| row |");
    for agent in RealAgent::ALL {
        // Writing into a string does not fail.
        let _ = write!(text, " {agent} |");
    }
    text += "\n|---|---|---|---|---|---|\n";
    for row in ROWS {
        let _ = write!(text, "| `{}` |", row.name);
        for (index, agent) in RealAgent::ALL.into_iter().enumerate() {
            let of = |face| {
                results.iter().rfind(|result| {
                    result.cell.row == row.name && result.cell.agent == agent && result.cell.face == face
                })
            };
            let unchanged =
                old.get(&(row.name.to_owned(), index)).cloned().unwrap_or_else(|| "not run".to_owned());
            let cell = match (of(Face::Mock), of(Face::Released)) {
                (Some(mock), Some(released)) if verdict(mock) == verdict(released) => verdict(mock),
                (Some(mock), Some(released)) => {
                    format!("mock: {}; released: {}", verdict(mock), verdict(released))
                }
                _ => unchanged,
            };
            let _ = write!(text, " {cell} |");
        }
        text += "\n";
    }
    text + "\n"
}

fn verdict(result: &Report) -> String {
    let plain = |text: &str| text.replace(['|', '\n'], " ");
    match &result.seen {
        Seen::Works => "works".to_owned(),
        Seen::Note(text) => format!("works: {}", plain(text)),
        Seen::Cannot(text) => format!("cannot: {}", plain(text)),
        Seen::Failed(_) => match known::failure(&result.cell) {
            Some(known) => format!("**fails** ({})", known.whose),
            None => "**fails**".to_owned(),
        },
    }
}
