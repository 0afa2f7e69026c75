//! What becomes of one HTTP request.

use std::time::Duration;

use super::{random::Random, world::World};

/// What becomes of one POST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It arrives, and so does its response.
    Arrives,
    /// No connection is made.
    Refused,
    /// It is lost on the way.
    LostBefore,
    /// The server handles it; its response is lost at once.
    LostAfter,
    /// The server handles it; the connection hangs until it breaks.
    Hangs,
    /// A proxy refuses it with this status, unread.
    Status(u16),
    /// A proxy gives up on it with this status after the server took it.
    GaveUp(u16),
    /// The response is cut within its body.
    CutBody,
    /// The server accepts it with 202 and answers on the stream.
    Accepted,
}

/// The fate of one POST, and how long its parts take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery {
    pub(super) fate: Fate,
    /// From the client to the server.
    pub(super) out: Duration,
    /// From the server to the client.
    pub(super) back: Duration,
    /// Where a body is cut, and other choices.
    pub(super) place: u64,
}

impl Delivery {
    pub(super) fn draw(world: &World, label: &str, echoes: bool) -> Self {
        let mut random = world.random(label);
        let (latency, faults) = (world.plan.latency, &world.plan.faults);
        let (mut out, mut back) = (random.millis(latency), random.millis(latency));
        // Most messages are quick; races come from the few that are not.
        if random.per_mille(400) {
            out = Duration::ZERO;
        }
        if random.per_mille(400) {
            back = Duration::ZERO;
        }
        let place = random.next();
        let mut fate = Fate::Arrives;
        if !world.is_over() {
            fate = draw_fate(&mut random, world, echoes);
            if random.per_mille(faults.slow_post) {
                out += random.millis(8_000);
                world.disturb();
            }
            if random.per_mille(faults.slow_post) {
                back += random.millis(8_000);
                world.disturb();
            }
        }
        if fate != Fate::Arrives {
            world.disturb();
        }
        Self { fate, out, back, place }
    }
}

fn draw_fate(random: &mut Random, world: &World, echoes: bool) -> Fate {
    let faults = &world.plan.faults;
    if random.per_mille(faults.post) {
        random.pick(&[Fate::Refused, Fate::LostBefore, Fate::LostAfter, Fate::LostAfter])
    } else if random.per_mille(faults.status) {
        let refused = Fate::Status(random.pick(&[429, 503, 502, 500]));
        let gave_up = Fate::GaveUp(random.pick(&[504, 502, 524]));
        random.pick(&[refused, gave_up])
    } else if random.per_mille(faults.hang) {
        Fate::Hangs
    } else if random.per_mille(faults.body) {
        Fate::CutBody
    } else if echoes && random.per_mille(faults.accept) {
        Fate::Accepted
    } else {
        Fate::Arrives
    }
}
