//! Which events are new, by the meaning of their ids.

use std::collections::HashSet;

use arbitrary::{Result, Unstructured};

use crate::{
    EventId, EventIds,
    sse::{Fingerprint, Flow, Identity, Sequenced},
};

/// An event of an honest server: its incarnation and its number.
type Sent = (u32, u64);

/// Checks that no event is delivered twice, whatever fails, and that all events are delivered in order if nothing is
/// lost.
pub fn sequence(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(honest) = input.arbitrary() else { return };
    // The input is over when it has no more choices.
    let _over = if honest { Model::default().run(&mut input) } else { any_ids(&mut input) };
}

/// Ids without any rule: each event is delivered at most once, and no event is dropped because of an id that does not
/// identify it.
fn any_ids(input: &mut Unstructured<'_>) -> Result<()> {
    let kind = if input.arbitrary()? { EventIds::Sequence } else { EventIds::Opaque };
    let mut identity = Identity::new(kind, None);
    let (mut out, mut fed, mut anonymous) = (Vec::new(), 0u64, 0);
    while !input.is_empty() {
        match input.int_in_range(0..=9)? {
            0 => identity.reopened(),
            1 => identity.give_up(&mut out),
            2 => {
                let id = any_id(input)?;
                identity.skip(id.as_ref(), &mut out);
            }
            _ => {
                let id = any_id(input)?;
                let content = [input.int_in_range(0..=3)?];
                // Some are responses to a request that was made after this number was seen.
                let fresh = if input.ratio(1, 8)? { Some(input.int_in_range(0..=12u64)?) } else { None };
                identity.accept(id.as_ref(), Fingerprint::of(&content), fed, |_| fresh, &mut out);
                anonymous += u64::from(id.is_none());
                fed += 1;
            }
        }
        // These are asked before each opening.
        let _asked =
            (identity.resume_point(), identity.hole_timeout(), identity.last(), identity.is_resumable());
    }
    identity.give_up(&mut out);
    let delivered: Vec<u64> = items(&out).copied().collect();
    let distinct: HashSet<&u64> = delivered.iter().collect();
    assert_eq!(distinct.len(), delivered.len(), "an event came out twice: {out:?}");
    assert!(delivered.len() as u64 >= anonymous, "an event without an id was dropped: {out:?}");
    Ok(())
}

fn any_id(input: &mut Unstructured<'_>) -> Result<Option<EventId>> {
    Ok(match input.int_in_range(0..=15)? {
        0 => None,
        1 => Some(EventId::from("x")),
        2 => Some(EventId::from(u64::MAX - 1)),
        3 => Some(EventId::from(input.arbitrary::<u64>()?.min(u64::MAX - 1))),
        small => Some(EventId::from(small - 3)),
    })
}

fn items<T>(out: &[Sequenced<T>]) -> impl Iterator<Item = &T> {
    out.iter().filter_map(|out| match out {
        Sequenced::Item(item) | Sequenced::Alike(item) | Sequenced::Late(item) => Some(item),
        Sequenced::Unproven | Sequenced::Gap { .. } | Sequenced::Restarted => None,
    })
}

/// A server that conforms, on a network that loses and reorders events.
#[derive(Debug)]
struct Model {
    identity: Identity<Sent>,
    out: Vec<Sequenced<Sent>>,
    incarnation: u32,
    /// How many events this incarnation has sent to its buffer, and how many of the first ones it has dropped.
    produced: u64,
    dropped: u64,
    /// The number of the last event that went over the open stream.
    cursor: Option<u64>,
    /// Whether an event was lost or swapped, or the server restarted.
    disturbed: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            identity: Identity::new(EventIds::Sequence, None),
            out: Vec::new(),
            incarnation: 0,
            produced: 0,
            dropped: 0,
            cursor: None,
            disturbed: false,
        }
    }
}

impl Model {
    fn run(mut self, input: &mut Unstructured<'_>) -> Result<()> {
        while !input.is_empty() {
            match input.int_in_range(0..=9)? {
                0..=1 => self.produced += input.int_in_range(1..=6)?,
                2 => self.open(),
                3 => self.cursor = None,
                4 => {
                    (self.incarnation, self.produced, self.dropped) = (self.incarnation + 1, 0, 0);
                    (self.cursor, self.disturbed) = (None, true);
                }
                5 => {
                    self.dropped = input.int_in_range(self.dropped..=self.produced)?;
                    self.disturbed = true;
                }
                6 => self.identity.give_up(&mut self.out),
                7 => self.lose(),
                8 => self.swap(),
                _ => self.deliver(input.int_in_range(1..=6)?),
            }
            self.check();
        }
        self.finish();
        Ok(())
    }

    fn open(&mut self) {
        let point = self.identity.resume_point().and_then(|point| point.parse().ok());
        self.identity.reopened();
        self.cursor = Some(point.unwrap_or(0).max(self.dropped));
    }

    fn deliver(&mut self, count: u64) {
        for _ in 0..count {
            let Some(next) = self.cursor.map(|cursor| cursor + 1).filter(|next| *next <= self.produced)
            else {
                return;
            };
            self.cursor = Some(next);
            self.feed(next);
        }
    }

    /// The stream leaves an event out.
    fn lose(&mut self) {
        if let Some(cursor) = self.cursor.filter(|cursor| *cursor < self.produced) {
            self.cursor = Some(cursor + 1);
            self.disturbed = true;
        }
    }

    /// Two neighbouring events swap positions.
    fn swap(&mut self) {
        let Some(cursor) = self.cursor.filter(|cursor| cursor + 2 <= self.produced) else { return };
        self.disturbed = true;
        self.cursor = Some(cursor + 2);
        self.feed(cursor + 2);
        if self.cursor.is_some() {
            self.feed(cursor + 1);
        }
    }

    fn feed(&mut self, number: u64) {
        let sent = (self.incarnation, number);
        let print = Fingerprint::of(format!("{sent:?}").as_bytes());
        let flow = self.identity.accept(Some(&EventId::from(number)), print, sent, |_| None, &mut self.out);
        if flow == Flow::Reopen {
            self.cursor = None;
        }
    }

    fn check(&self) {
        let delivered: Vec<&Sent> = items(&self.out).collect();
        let distinct: HashSet<&&Sent> = delivered.iter().collect();
        assert_eq!(distinct.len(), delivered.len(), "an event was delivered twice: {:?}", self.out);
        for out in &self.out {
            if let Sequenced::Gap { from, to } = out {
                assert!(from <= to, "an empty gap: {:?}", self.out);
            }
        }
    }

    /// Everything that the server has is read.
    fn finish(&mut self) {
        for _ in 0..8 {
            if self.cursor.is_none() {
                self.open();
            }
            self.deliver(u64::MAX);
        }
        self.identity.give_up(&mut self.out);
        self.check();
        if !self.disturbed {
            let expected: Vec<Sequenced<Sent>> =
                (1..=self.produced).map(|number| Sequenced::Item((0, number))).collect();
            self.out.retain(|out| *out != Sequenced::Unproven);
            assert_eq!(self.out, expected, "something is lost or invented");
        }
    }
}
