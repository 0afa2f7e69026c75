//! The results of a cell over all its runs.

use crate::{
    cell::{Cell, Seen},
    runner::Report,
};

/// What was seen of one cell in all its runs. One failed run is a failure.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) cell: Cell,
    pub(crate) passed: usize,
    /// How many of the passed runs met a rare defect.
    pub(crate) rare: usize,
    pub(crate) runs: usize,
    pub(crate) seen: Seen,
}

impl Tally {
    /// The cells of these results, in the order of the matrix.
    pub(crate) fn of(results: &[Report]) -> Vec<Self> {
        let cells = crate::cells().into_iter();
        cells
            .filter_map(|cell| Self::one(cell, results.iter().filter(|result| result.cell == cell)))
            .collect()
    }

    fn one<'r>(cell: Cell, results: impl Iterator<Item = &'r Report>) -> Option<Self> {
        let seen: Vec<&Seen> = results.map(|result| &result.seen).collect();
        let first = *seen.first()?;
        let failed = seen.iter().filter(|seen| matches!(seen, Seen::Failed(_))).count();
        let rare = seen.iter().filter(|seen| matches!(seen, Seen::Rare(_))).count();
        let worst = match seen.iter().find(|seen| matches!(seen, Seen::Failed(_))) {
            Some(failure) => (*failure).clone(),
            None => match seen.iter().find(|seen| seen.usual() != first.usual()) {
                Some(other) => Seen::Failed(format!("the results of two runs differ: {first:?}, {other:?}")),
                None => first.usual(),
            },
        };
        Some(Self { cell, passed: seen.len() - failed, rare, runs: seen.len(), seen: worst })
    }
}

/// Checks that a failure is not hidden by later runs, and that different results are one.
pub(crate) fn check() {
    let cell = crate::cells()[0];
    let merged = |seen: &[Seen]| {
        let report = |seen: &Seen| Report { cell, seen: seen.clone(), took: std::time::Duration::ZERO };
        let reports: Vec<Report> = seen.iter().map(report).collect();
        let mut tallies = Tally::of(&reports);
        assert_eq!(tallies.len(), 1);
        tallies.pop().expect("a tally")
    };
    let failed = Seen::Failed("once".to_owned());
    let tally = merged(&[Seen::Works, failed.clone(), Seen::Works]);
    assert_eq!((tally.passed, tally.runs, &tally.seen), (2, 3, &failed));
    assert_eq!(merged(&[Seen::Works, Seen::Works]).seen, Seen::Works);
    assert!(matches!(merged(&[Seen::Works, Seen::note("a remark")]).seen, Seen::Failed(_)));
    let rare = Seen::Rare("a remark".to_owned());
    let tally = merged(&[Seen::note("a remark"), rare.clone(), Seen::note("a remark")]);
    assert_eq!((tally.passed, tally.rare, tally.seen), (3, 1, Seen::note("a remark")));
    assert!(matches!(merged(&[rare, Seen::note("another")]).seen, Seen::Failed(_)));
}
