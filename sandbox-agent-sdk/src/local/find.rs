//! Where the server's program is.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::LocalError;

/// The name of the program.
const PROGRAM: &str = "sandbox-agent";
/// Names the program, for all programs of a user.
const VARIABLE: &str = "SANDBOX_AGENT_BIN";

/// The places where the program may be.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// What the options say. Where this is set, nothing else is looked at.
    pub(super) option: Option<PathBuf>,
    /// What the environment says. Where this is set, nothing behind it is looked at.
    pub(super) variable: Option<PathBuf>,
    pub(super) path: Option<OsString>,
    /// The directory from which packages are looked for, upwards.
    pub(super) directory: Option<PathBuf>,
}

impl Places {
    /// The places of this process.
    pub(super) fn here(option: Option<PathBuf>) -> Self {
        Self {
            option,
            variable: std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from),
            path: std::env::var_os("PATH"),
            directory: std::env::current_dir().ok(),
        }
    }

    /// The first program that is there.
    pub(super) fn find(&self) -> Result<PathBuf, LocalError> {
        // A program that somebody named and that is not there must not be replaced by another one in silence.
        if let Some(named) = &self.option {
            return only(named, format!("{} (as the options say)", named.display()));
        }
        if let Some(named) = &self.variable {
            return only(named, format!("{} (as {VARIABLE} says)", named.display()));
        }
        let mut looked = vec![format!("{VARIABLE} (not set)")];
        let directories = self.path.iter().flat_map(std::env::split_paths);
        for candidate in directories.filter(|directory| directory.is_absolute()).map(|dir| dir.join(PROGRAM))
        {
            if is_program(&candidate) {
                return Ok(candidate);
            }
        }
        looked.push("PATH".to_owned());
        let Some(package) = platform_package() else {
            let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
            looked.push(format!("npm (there is no package for {os} on {arch})"));
            return Err(LocalError::NotFound { looked });
        };
        for directory in self.directory.iter().flat_map(|directory| directory.ancestors()) {
            let candidate = directory.join("node_modules").join(package).join("bin").join(PROGRAM);
            if candidate.is_file() {
                make_executable(&candidate);
                return Ok(candidate);
            }
        }
        if let Some(directory) = &self.directory {
            let place = directory.join("node_modules").join(package);
            looked.push(format!("{} and the same above it", place.display()));
        }
        Err(LocalError::NotFound { looked })
    }
}

fn only(named: &Path, place: String) -> Result<PathBuf, LocalError> {
    if named.is_file() { Ok(named.to_owned()) } else { Err(LocalError::NotFound { looked: vec![place] }) }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The package comes without the permission to run it. A program that cannot be given it fails to start, with the
/// system's own words.
fn make_executable(program: &Path) {
    if !is_program(program)
        && let Err(error) = fs::set_permissions(program, fs::Permissions::from_mode(0o755))
    {
        tracing::debug!(program = %program.display(), %error, "the program cannot be made executable");
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn places_are_looked_at_in_their_order() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let in_path = at("bin/sandbox-agent");
        let package = at("app/node_modules").join(platform_package().unwrap()).join("bin/sandbox-agent");
        for (path, mode) in
            [(&at("named"), 0o755), (&at("variable"), 0o755), (&in_path, 0o755), (&package, 0o644)]
        {
            program(path, mode);
        }
        let mut places = Places {
            option: Some(at("named")),
            variable: Some(at("variable")),
            path: Some(std::env::join_paths([at("empty"), at("bin")]).unwrap()),
            directory: Some(at("app/deep/deeper")),
        };
        assert_eq!(places.find().unwrap(), at("named"));
        places.option = None;
        assert_eq!(places.find().unwrap(), at("variable"));
        places.variable = None;
        assert_eq!(places.find().unwrap(), in_path);
        fs::set_permissions(&in_path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(places.find().unwrap(), package, "what cannot be run is no program");
        assert!(is_program(&package), "a package's program is made one");
    }

    #[test]
    fn what_is_not_found_is_told_with_where_it_was_looked_for() {
        let root = tempfile::tempdir().unwrap();
        let looked = |places: &Places| match places.find() {
            Err(LocalError::NotFound { looked }) => looked,
            other => panic!("{other:?}"),
        };
        let mut places = Places { directory: Some(root.path().to_owned()), ..Places::default() };
        let all = looked(&places);
        assert_eq!(all.len(), 3);
        assert!(
            all[0].starts_with("SANDBOX_AGENT_BIN") && all[1] == "PATH" && all[2].contains("node_modules")
        );
        places.variable = Some(root.path().join("gone"));
        assert_eq!(looked(&places), [format!("{}/gone (as SANDBOX_AGENT_BIN says)", root.path().display())]);
        places.option = Some(root.path().to_owned());
        assert_eq!(looked(&places).len(), 1, "a folder is no program");
    }
}
