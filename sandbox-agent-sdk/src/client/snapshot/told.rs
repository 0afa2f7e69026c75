//! When something was told, and what newer and older news are worth against it.

/// When something was last told of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Told {
    #[default]
    Never,
    /// Before this connection, at some time.
    Before,
    /// In the history of a session that was loaded.
    InHistory,
    /// At this time.
    At(u64),
}

/// What a piece of news is worth against what is known.
#[derive(Debug, Clone, Copy)]
pub(super) enum Worth {
    /// It is the newest there is.
    News,
    /// It is the history of a session whose load began at this time, if that is known: whatever was told since is newer,
    /// and so is any answer.
    History(Option<u64>),
    /// It is older than anything else.
    Old,
    /// It is newer than what was known at this time.
    Since(u64),
}

impl Told {
    /// Whether it was told after this time.
    pub(super) fn is_after(self, time: u64) -> bool {
        matches!(self, Self::At(told) if told > time)
    }

    /// Takes note of news, and says whether they count.
    pub(super) fn hear(&mut self, worth: Worth, now: u64) -> bool {
        let (counts, told) = match worth {
            Worth::News => (true, Self::At(now)),
            Worth::History(began) => (!began.is_some_and(|began| self.is_after(began)), Self::InHistory),
            Worth::Old => (matches!(self, Self::Never | Self::Before), Self::Before),
            Worth::Since(began) => (!self.is_after(began), Self::At(now)),
        };
        if counts {
            *self = told;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::Told::{self, At, Before, InHistory, Never};
    use super::Worth::{self, History, News, Old, Since};

    #[test]
    fn what_is_older_never_replaces_what_is_newer() {
        let table: [(Told, Worth, bool); 17] = [
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
        for (told, worth, counts) in table {
            let mut now = told;
            assert_eq!(now.hear(worth, 5), counts, "{told:?} {worth:?}");
            assert_eq!(
                now == told,
                !counts || matches!((told, worth), (Before, Old) | (InHistory, History(_)))
            );
        }
    }
}
