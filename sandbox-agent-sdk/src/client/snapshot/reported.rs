//! When a part was reported, and whether another report replaces it.

/// When a part was last reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Reported {
    #[default]
    Never,
    /// At an unknown time before this connection.
    Before,
    /// In the history of a session that was loaded.
    InHistory,
    /// At this time.
    At(u64),
}

/// How new a report is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Worth {
    /// It is the newest there is.
    News,
    /// It is the history of a session whose load began at this time, if known. Reports since then and all responses are
    /// newer.
    History(Option<u64>),
    /// It is older than anything else.
    Old,
    /// It is newer than what was known at this time.
    Since(u64),
}

impl Reported {
    /// Whether it was reported after this time.
    pub(super) fn is_after(self, time: u64) -> bool {
        matches!(self, Self::At(reported) if reported > time)
    }

    /// Records a report, and returns whether it is newer.
    pub(super) fn accept(&mut self, worth: Worth, now: u64) -> bool {
        let (counts, reported) = match worth {
            Worth::News => (true, Self::At(now)),
            Worth::History(began) => (!began.is_some_and(|began| self.is_after(began)), Self::InHistory),
            Worth::Old => (matches!(self, Self::Never | Self::Before), Self::Before),
            Worth::Since(began) => (!self.is_after(began), Self::At(now)),
        };
        if counts {
            *self = reported;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::Reported::{self, At, Before, InHistory, Never};
    use super::Worth::{self, History, News, Old, Since};

    #[test]
    fn what_is_older_never_replaces_what_is_newer() {
        let table: [(Reported, Worth, bool); 17] = [
            (Never, Old, true),
            (Before, Old, true),
            (InHistory, Old, false),
            (At(1), Old, false),
            (Never, History(Some(3)), true),
            (Before, History(Some(3)), true),
            (InHistory, History(Some(3)), true),
            (At(3), History(Some(3)), true),
            (At(4), History(Some(3)), false),
            (At(4), History(None), true),
            (Never, Since(3), true),
            (Before, Since(3), true),
            (InHistory, Since(3), true),
            (At(3), Since(3), true),
            (At(4), Since(3), false),
            (InHistory, News, true),
            (At(9), News, true),
        ];
        for (reported, worth, counts) in table {
            let mut now = reported;
            assert_eq!(now.accept(worth, 5), counts, "{reported:?} {worth:?}");
            assert_eq!(
                now == reported,
                !counts || matches!((reported, worth), (Before, Old) | (InHistory, History(_)))
            );
        }
    }
}
