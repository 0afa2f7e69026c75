//! Fetching the released server from npm, once.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};
use tokio::process::Command;

/// How long fetching one version may take.
const FETCH_LIMIT: Duration = Duration::from_secs(240);

/// Why the released server cannot be had on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl From<io::Error> for Unavailable {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The program of this version, below `folder`. It is fetched if it is not there; of several test processes that want
/// it at the same time one fetches it, and nobody ever sees half of it.
///
/// # Errors
/// Says what is missing: npm, the network, or a package for this platform.
pub async fn binary(folder: &Path, version: &str) -> Result<PathBuf, Unavailable> {
    let package = platform_package().ok_or_else(|| {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        Unavailable(format!("there is no package for {os} on {arch}"))
    })?;
    let home = folder.join(format!("sandbox-agent-{version}"));
    let program = home.join("node_modules").join(package).join("bin/sandbox-agent");
    installed(folder, &home, package, version, &program).await?;
    Ok(program)
}

/// The folder of the TypeScript SDK of this version, below `folder`. It is fetched as [`binary`] is.
///
/// # Errors
/// Says what is missing: npm, or the network.
pub async fn typescript_sdk(folder: &Path, version: &str) -> Result<PathBuf, Unavailable> {
    let home = folder.join(format!("typescript-sdk-{version}"));
    let package = home.join("node_modules/sandbox-agent");
    installed(folder, &home, "sandbox-agent", version, &package).await?;
    Ok(package)
}

/// Fetches a package into `home`, unless `result` is there.
async fn installed(
    folder: &Path,
    home: &Path,
    package: &str,
    version: &str,
    result: &Path,
) -> Result<(), Unavailable> {
    if result.exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let name = home.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let lock = folder.join(format!("{name}.lock"));
    // Waiting for another process may take as long as its download: not on a thread that others need.
    let held = tokio::task::spawn_blocking(move || {
        Flock::lock(File::create(lock)?, FlockArg::LockExclusive).map_err(|(_, error)| io::Error::from(error))
    });
    let _held = held.await.map_err(io::Error::other)??;
    if !result.exists() {
        fetch(folder, home, package, version).await?;
    }
    Ok(())
}

async fn fetch(folder: &Path, home: &Path, package: &str, version: &str) -> Result<(), Unavailable> {
    let part = tempfile::Builder::new().prefix("fetching-").tempdir_in(folder)?;
    fs::write(part.path().join("package.json"), "{\"private\":true}")?;
    let mut npm = Command::new("npm");
    npm.current_dir(part.path())
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .arg(format!("{package}@{version}"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(FETCH_LIMIT, npm.output()).await;
    let output = output
        .map_err(|_| Unavailable("npm took too long".to_owned()))?
        .map_err(|error| Unavailable(format!("npm cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(Unavailable(format!("npm failed: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let program = part.path().join("node_modules").join(package).join("bin/sandbox-agent");
    if program.exists() {
        fs::set_permissions(program, Permissions::from_mode(0o755))?;
    }
    fs::rename(part.keep(), home)?;
    Ok(())
}

fn platform_package() -> Option<&'static str> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => Some("@sandbox-agent/cli-linux-x64"),
        ("linux", "aarch64") => Some("@sandbox-agent/cli-linux-arm64"),
        ("macos", "x86_64") => Some("@sandbox-agent/cli-darwin-x64"),
        ("macos", "aarch64") => Some("@sandbox-agent/cli-darwin-arm64"),
        _ => None,
    }
}
