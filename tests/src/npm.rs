//! Downloads programs from npm once.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};
use tokio::process::Command;

/// The timeout of downloading one package.
const FETCH_LIMIT: Duration = Duration::from_secs(240);

/// Why a program cannot be run on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl From<io::Error> for Unavailable {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Returns the folder `name` in `folder`, with this package in its `node_modules`.
///
/// Downloads the package if it is missing. If several processes need it at the same time, one downloads it, and none
/// sees it incomplete. Scripts of the package are not run; `prepare` runs before the folder gets its final name.
///
/// # Errors
/// If npm, the network or the package is unavailable.
pub(crate) async fn installed(
    folder: &Path,
    name: &str,
    package: &str,
    prepare: impl Fn(&Path) -> io::Result<()>,
) -> Result<PathBuf, Unavailable> {
    let home = folder.join(name);
    if home.exists() {
        return Ok(home);
    }
    fs::create_dir_all(folder)?;
    let lock = folder.join(format!("{name}.lock"));
    // Waiting for another process may take as long as its download, so it runs on a blocking thread.
    let held = tokio::task::spawn_blocking(move || {
        Flock::lock(File::create(lock)?, FlockArg::LockExclusive).map_err(|(_, error)| io::Error::from(error))
    });
    let _held = held.await.map_err(io::Error::other)??;
    if !home.exists() {
        fetch(folder, &home, package, prepare).await?;
    }
    Ok(home)
}

async fn fetch(
    folder: &Path,
    home: &Path,
    package: &str,
    prepare: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), Unavailable> {
    let part = tempfile::Builder::new().prefix("fetching-").tempdir_in(folder)?;
    fs::write(part.path().join("package.json"), "{\"private\":true}")?;
    let mut npm = Command::new("npm");
    npm.current_dir(part.path())
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .arg(package)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(FETCH_LIMIT, npm.output()).await;
    let output = output
        .map_err(|_| Unavailable("npm took too long".to_owned()))?
        .map_err(|error| Unavailable(format!("npm cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(Unavailable(format!("npm failed: {}", String::from_utf8_lossy(&output.stderr))));
    }
    prepare(part.path())?;
    fs::rename(part.keep(), home)?;
    Ok(())
}
