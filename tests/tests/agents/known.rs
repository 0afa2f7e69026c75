//! Cells that fail today, and cells that are stable enough for CI.

use crate::cell::Cell;

/// A cell that asserts what is right and fails, whose defect that is, and why.
#[derive(Debug)]
pub(crate) struct Known {
    /// `ROW/AGENT/FACE`, with `*` for any.
    pub(crate) cells: &'static str,
    /// Whose defect it is.
    pub(crate) whose: &'static str,
    /// What happens.
    pub(crate) why: &'static str,
}

/// What fails today.
pub(crate) const KNOWN: &[Known] = &[];

/// The cells of CI: each was green twenty times in a row.
pub(crate) const CI: &[&str] = &[];

/// The known failure of a cell.
pub(crate) fn failure(cell: &Cell) -> Option<&'static Known> {
    KNOWN.iter().find(|known| matches(known.cells, cell))
}

/// Whether CI runs a cell.
pub(crate) fn in_ci(cell: &Cell) -> bool {
    CI.iter().any(|pattern| matches(pattern, cell))
}

fn matches(pattern: &str, cell: &Cell) -> bool {
    let name = cell.to_string();
    pattern.split('/').zip(name.split('/')).all(|(pattern, part)| pattern == "*" || pattern == part)
}
