//! The released server's program, from npm.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::npm::{Unavailable, installed};

/// Returns the program of this version in `folder`. Downloads it if it is missing.
///
/// # Errors
/// If npm, the network, or a package for this platform is unavailable.
pub async fn binary(folder: &Path, version: &str) -> Result<PathBuf, Unavailable> {
    let package = platform_package().ok_or_else(|| {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        Unavailable(format!("no npm package for {os} on {arch}"))
    })?;
    let program = Path::new("node_modules").join(package).join("bin/sandbox-agent");
    let executable = |home: &Path| fs::set_permissions(home.join(&program), Permissions::from_mode(0o755));
    let name = format!("sandbox-agent-{version}");
    let home = installed(folder, &name, &format!("{package}@{version}"), executable).await?;
    Ok(home.join(program))
}

/// Returns the folder of the TypeScript SDK of this version in `folder`. Downloads it like [`binary`].
///
/// # Errors
/// If npm or the network is unavailable.
pub async fn typescript_sdk(folder: &Path, version: &str) -> Result<PathBuf, Unavailable> {
    let name = format!("typescript-sdk-{version}");
    let home = installed(folder, &name, &format!("sandbox-agent@{version}"), |_| Ok(())).await?;
    Ok(home.join("node_modules/sandbox-agent"))
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
