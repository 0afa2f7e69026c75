//! The client in the simulator: a seed that breaks an invariant is replayed by
//! `cargo run --release -p sdk-tests --bin simulate -- --seed SEED --dialect NAME`.

use sdk_tests::sim::{Extent, Model, run, run_stored};

/// How many seeds each dialect gets.
const SEEDS: u64 = 600;

/// Seeds beyond those that broke an invariant once.
const FOUND: [(Model, u64); 12] = [
    // Events of a new incarnation, in gaps of the old one, over several openings.
    (Model::Rpc, 3_026_970),
    (Model::Rpc, 4_011_771),
    (Model::Rpc, 4_036_825),
    // A restart while the incarnation before it is read from its beginning.
    (Model::Rpc, 5_023_400),
    // A restart that only the echo of a deferred response shows.
    (Model::Rpc, 4_036_714),
    // A turn that was dropped and whose response never comes.
    (Model::Rpc, 9_000_467),
    (Model::Auto, 9_000_096),
    // History behind a quiet period, and a cut behind the last byte of an event.
    (Model::Early, 20_104_239),
    (Model::Auto, 40_018_985),
    // A prompt that is sent again, after Retry-After, behind its cancel.
    (Model::Official, 80),
    // A cancel that is open when the next prompt is sent, and hits it.
    (Model::Rpc, 5_754),
    // A turn that was dropped, and whose POST ends with 504 before the prompt has arrived.
    (Model::Early, 60_047_589),
];

/// How many seeds the stored sessions of several programs get: with text, and with every request of the agent.
const STORED_SEEDS: u64 = 80;
const REQUEST_SEEDS: u64 = 30;

/// Seeds beyond those that broke an invariant of stored sessions once: a turn whose session was replaced, an end that
/// was read and not stored, an update between a prompt that was never sent and the next owner, a restart that nobody had
/// seen, a session that was created before anything was read, a restart that was found while another process had given the
/// server before it a higher number, a restart whose stream ends before the position of a session.
const FOUND_STORED: [u64; 8] = [252, 795, 1_315, 1_463, 1_575, 1_636, 1_854, 2_949];

/// Seeds beyond those that broke an invariant of agent requests once: a request that arrives while its session is acquired
/// by several programs, one that the store confirms after its turn, an answer that is decided after its turn, a request of
/// an agent that had ended with its server, a request that is cancelled with its turn, a session whose id in the agent
/// another session got after a restart; and a session that was released in its turn, by the program that runs the turn or
/// by the next owner, so that nobody responds.
const FOUND_REQUESTS: [u64; 13] =
    [95, 128, 138, 149, 337, 1_282, 1_869, 1_993, 2_267, 2_662, 3_173, 10_004, 10_127];

fn simulate(model: Model) {
    for seed in 0..SEEDS {
        let report = run(seed, Some(model), false);
        assert_eq!(report.violations, [""; 0], "seed {seed}, dialect {}", model.name());
    }
}

#[test]
fn a_reference_server_and_every_fault_break_no_invariant() {
    simulate(Model::Rpc);
}

#[test]
fn a_released_server_and_every_fault_break_no_invariant() {
    simulate(Model::Released);
}

#[test]
fn an_early_server_and_every_fault_break_no_invariant() {
    simulate(Model::Early);
}

#[test]
fn an_official_server_and_every_fault_break_no_invariant() {
    simulate(Model::Official);
}

#[test]
fn an_unknown_server_with_any_ids_and_every_fault_break_no_invariant() {
    simulate(Model::Auto);
}

#[test]
fn every_seed_that_was_found_breaks_no_invariant_any_more() {
    for (model, seed) in FOUND {
        let report = run(seed, Some(model), false);
        assert_eq!(report.violations, [""; 0], "seed {seed}, dialect {}", model.name());
    }
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    for seed in 0..60 {
        let [first, second] = [(); 2].map(|()| run(seed, None, true));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert!(!first.trace.is_empty());
    }
}

#[test]
fn programs_that_share_stored_sessions_lose_repeat_and_mix_up_nothing() {
    for seed in (0..STORED_SEEDS).chain(FOUND_STORED) {
        let report = run_stored(seed, Extent::Text, false);
        assert_eq!(report.violations, [""; 0], "seed {seed}: simulate --stored-text --seed {seed}");
    }
}

#[test]
fn programs_that_share_stored_sessions_execute_each_request_once_and_store_each_answer() {
    for seed in (0..REQUEST_SEEDS).chain(FOUND_REQUESTS) {
        let report = run_stored(seed, Extent::Requests, false);
        assert_eq!(report.violations, [""; 0], "seed {seed}: simulate --stored --seed {seed}");
    }
}

#[test]
fn programs_that_disconnect_during_turns_break_no_invariant() {
    for seed in 0..REQUEST_SEEDS {
        let report = run_stored(seed, Extent::Disconnects, false);
        assert_eq!(report.violations, [""; 0], "seed {seed}: simulate --stored-disconnects --seed {seed}");
    }
}
