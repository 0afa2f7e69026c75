//! Runs a program without network, and ends every process that it started.

use std::{ffi::OsStr, path::Path, process::Stdio};

use tokio::process::Command;

/// The ways to get a namespace: as root, and as any user.
const WAYS: [&[&str]; 2] = [
    &["--net", "--pid", "--fork", "--kill-child", "--mount-proc"],
    &["--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"],
];

/// How programs are isolated from the network on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// A network namespace with loopback alone, and a process namespace that ends with the program.
    Namespace(&'static [&'static str]),
    /// The machine does not allow namespaces.
    Nothing,
}

impl Isolation {
    /// Finds out what the machine allows.
    pub async fn probe() -> Self {
        for way in WAYS {
            let mut command = Self::Namespace(way).command(Path::new("true"), [] as [&str; 0]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if command.status().await.is_ok_and(|status| status.success()) {
                return Self::Namespace(way);
            }
        }
        Self::Nothing
    }

    /// The command that runs `program` with `arguments` in it.
    pub fn command(self, program: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let Self::Namespace(options) = self else {
            let mut command = Command::new(program);
            command.args(arguments);
            return command;
        };
        let mut command = Command::new("unshare");
        command.args(options).args(["--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        command.arg(program).args(arguments);
        command
    }
}
