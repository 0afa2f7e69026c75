//! One row of the matrix for one agent behind one server.

use std::{fmt, path::PathBuf, process::ExitCode};

use futures::FutureExt;
use sdk_tests::agents::RealAgent;
use serde_json::{Value, json};

use crate::rows::ROWS;

/// The server that the agent runs behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    /// The mock server's `/v1/rpc`.
    Mock,
    /// The released program 0.4.2.
    Released,
}

impl Face {
    pub(crate) const ALL: [Self; 2] = [Self::Mock, Self::Released];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mock => "mock",
            Self::Released => "released",
        }
    }
}

/// One cell of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) row: &'static str,
    pub(crate) agent: RealAgent,
    pub(crate) face: Face,
}

impl Cell {
    /// The cell of this name, `ROW/AGENT/FACE`.
    fn named(name: &str) -> Option<Self> {
        crate::cells().into_iter().find(|cell| cell.to_string() == name)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.row, self.agent, self.face.name())
    }
}

/// Whose limit or defect a result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Agent,
    Server,
}

impl Whose {
    const ALL: [Self; 2] = [Self::Agent, Self::Server];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Server => "server",
        }
    }
}

/// The asserted result of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It works.
    Works,
    /// It works, with a remark for users.
    Note(String),
    /// The agent or the server cannot do this, and users see that.
    Cannot(Whose, String),
    /// It works, with this remark, and the row has evidence of a [rare defect](crate::known::RARE).
    Rare(String),
    /// It failed.
    Failed(String),
}

impl Seen {
    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self::Note(text.into())
    }

    /// The agent cannot do it.
    pub(crate) fn cannot(text: impl Into<String>) -> Self {
        Self::Cannot(Whose::Agent, text.into())
    }

    /// The server cannot do it.
    pub(crate) fn server_cannot(text: impl Into<String>) -> Self {
        Self::Cannot(Whose::Server, text.into())
    }

    /// The result without a rare defect.
    pub(crate) fn usual(&self) -> Self {
        match self {
            Self::Rare(text) => Self::Note(text.clone()),
            other => other.clone(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Works => json!({ "seen": "works" }),
            Self::Note(text) => json!({ "seen": "note", "text": text }),
            Self::Cannot(whose, text) => json!({ "seen": "cannot", "whose": whose.name(), "text": text }),
            Self::Rare(text) => json!({ "seen": "rare", "text": text }),
            Self::Failed(text) => json!({ "seen": "failed", "text": text }),
        }
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let text = value["text"].as_str().unwrap_or_default().to_owned();
        Some(match value["seen"].as_str()? {
            "works" => Self::Works,
            "note" => Self::Note(text),
            "cannot" => {
                let whose = value["whose"].as_str()?;
                Self::Cannot(Whose::ALL.into_iter().find(|known| known.name() == whose)?, text)
            }
            "rare" => Self::Rare(text),
            _ => Self::Failed(text),
        })
    }
}

/// The prefix of a cell's result on its standard output.
pub(crate) const RESULT: &str = "CELL ";

/// Where the agents and the released server are, or are fetched to.
pub(crate) fn folder() -> PathBuf {
    let default = || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("agents");
    std::env::var_os("SDK_TESTS_AGENTS").map_or_else(default, PathBuf::from)
}

/// Runs one cell in this process and prints what was seen.
pub(crate) async fn run(name: &str) -> ExitCode {
    if std::env::var_os("AGENTS_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_env("AGENTS_LOG");
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let Some(cell) = Cell::named(name) else {
        eprintln!("there is no cell {name}");
        return ExitCode::FAILURE;
    };
    let row = ROWS.iter().find(|row| row.name == cell.row).expect("a cell has a row");
    let seen = std::panic::AssertUnwindSafe((row.run)(cell)).catch_unwind().await;
    let seen = seen.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Seen::Failed(text.unwrap_or_else(|| "panic without a message".to_owned()))
    });
    println!("{RESULT}{}", seen.to_json());
    ExitCode::SUCCESS
}
