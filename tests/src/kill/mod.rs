//! Stored sessions of programs, servers and databases that are killed while 50 turns run.
//!
//! ```text
//! run       a world of a seed: its rounds, and what it reports
//! process   the server and the program as processes that can be killed
//! agent     the server's side: an agent that says numbered words
//! program   the program that is killed, and the one that settles everything in the end
//! words     how prompts and words are written
//! check     what has to hold of what is stored                                (pure)
//! ```
//!
//! A seed decides whom each round kills and when. What runs at that moment depends on the machine, so that a seed is a
//! plan and not a replay: a seed that fails may have to be run several times.

mod agent;
mod check;
mod process;
mod program;
mod run;
mod words;

pub use agent::{Ability, serve};
pub use check::{Losses, violations};
pub use program::{Drive, Task, drive};
pub use run::{Backend, Plan, Report, Target, run};
