//! Finds the server's program.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LocalError;
use crate::trust::{Verdict, check};

/// The name of the program.
const PROGRAM: &str = "sandbox-agent";
/// The environment variable that names the program.
const VARIABLE: &str = "SANDBOX_AGENT_BIN";

/// Where to search for the program.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The program from the options. If set, it is the only candidate.
    pub(super) option: Option<PathBuf>,
    /// The program from the environment. If set, it is the only remaining candidate.
    pub(super) variable: Option<PathBuf>,
    pub(super) path: Option<OsString>,
    /// The directory where the search for `node_modules` starts. It continues in the parent directories.
    pub(super) node_modules: Option<PathBuf>,
    /// Whether a program that other users can replace is accepted.
    pub(super) accept_untrusted: bool,
}

impl Search {
    /// Creates a search from `PATH`, the environment variable and these options.
    pub(super) fn new(
        option: Option<PathBuf>,
        node_modules: Option<PathBuf>,
        accept_untrusted: bool,
    ) -> Self {
        Self {
            option,
            variable: std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from),
            path: std::env::var_os("PATH"),
            node_modules,
            accept_untrusted,
        }
    }

    /// Returns the absolute path of an executable program that other users cannot replace.
    pub(super) fn find(&self) -> Result<PathBuf, LocalError> {
        trusted(&self.locate()?, self.accept_untrusted)
    }

    fn locate(&self) -> Result<PathBuf, LocalError> {
        // If a named program does not exist, no other program silently replaces it.
        if let Some(named) = &self.option {
            return only(named, format!("{} (from the options)", named.display()));
        }
        if let Some(named) = &self.variable {
            return only(named, format!("{} (from {VARIABLE})", named.display()));
        }
        let mut searched = vec![format!("{VARIABLE} (not set)")];
        if let Some(found) = in_path(PROGRAM, self.path.as_deref()) {
            return Ok(found);
        }
        searched.push("PATH".to_owned());
        let Some(start) = &self.node_modules else {
            return Err(LocalError::NotFound { searched });
        };
        // A relative path has no ancestors.
        let start =
            std::path::absolute(start).map_err(|error| LocalError::machine("working directory", error))?;
        let Some(package) = platform_package() else {
            let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
            searched.push(format!("npm (no package for {os} on {arch})"));
            return Err(LocalError::NotFound { searched });
        };
        let mut candidates = start
            .ancestors()
            .map(|directory| directory.join("node_modules").join(package).join("bin").join(PROGRAM));
        candidates.find(|candidate| candidate.is_file()).ok_or_else(|| {
            let first = start.join("node_modules").join(package);
            searched.push(format!("{} and in its parent directories", first.display()));
            LocalError::NotFound { searched }
        })
    }
}

/// Finds a program in the absolute directories of a search path. Relative ones lead to the working directory, which may
/// come from an untrusted author.
pub(crate) fn in_path(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    let directories = std::env::split_paths(path?).filter(|directory| directory.is_absolute());
    let mut candidates = directories.map(|directory| directory.join(name));
    candidates.find(|candidate| is_executable(candidate))
}

/// Returns the absolute path of an executable program, which other users cannot replace unless that is accepted.
pub(crate) fn trusted(found: &Path, accept_untrusted: bool) -> Result<PathBuf, LocalError> {
    let refused =
        |source: io::Error| LocalError::Spawn { binary: found.to_owned(), source: Arc::new(source) };
    let binary = std::path::absolute(found).map_err(refused)?;
    if !is_executable(&binary) {
        return Err(LocalError::NotExecutable { binary });
    }
    if accept_untrusted {
        return Ok(binary);
    }
    match check(&binary).map_err(refused)? {
        Verdict::Trusted => Ok(binary),
        Verdict::Untrusted(entry, problem) => Err(LocalError::Untrusted { binary, entry, problem }),
    }
}

fn only(named: &Path, place: String) -> Result<PathBuf, LocalError> {
    if named.is_file() { Ok(named.to_owned()) } else { Err(LocalError::NotFound { searched: vec![place] }) }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
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

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_options_come_before_the_variable_the_path_and_node_modules() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let in_path = at("bin/sandbox-agent");
        let package = at("app/node_modules").join(platform_package().unwrap()).join("bin/sandbox-agent");
        for path in [&at("named"), &at("variable"), &in_path, &package] {
            program(path, 0o755);
        }
        let mut search = Search {
            option: Some(at("named")),
            variable: Some(at("variable")),
            path: Some(std::env::join_paths([at("empty"), at("bin")]).unwrap()),
            node_modules: Some(at("app/deep/deeper")),
            accept_untrusted: false,
        };
        assert_eq!(search.find().unwrap(), at("named"));
        search.option = None;
        assert_eq!(search.find().unwrap(), at("variable"));
        search.variable = None;
        assert_eq!(search.find().unwrap(), in_path);
        fs::set_permissions(&in_path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(search.find().unwrap(), package, "a file that is not executable is skipped in PATH");
        search.node_modules = None;
        assert!(matches!(search.find(), Err(LocalError::NotFound { .. })), "node_modules is opt-in");
    }

    #[test]
    fn the_mode_of_a_program_is_never_changed() {
        let root = tempfile::tempdir().unwrap();
        let package =
            root.path().join("node_modules").join(platform_package().unwrap()).join("bin/sandbox-agent");
        program(&package, 0o644);
        let mut search = Search { node_modules: Some(root.path().to_owned()), ..Search::default() };
        let result = search.find();
        assert!(
            matches!(&result, Err(LocalError::NotExecutable { binary }) if *binary == package),
            "{result:?}"
        );
        search.option = Some(package.clone());
        assert!(matches!(search.find(), Err(LocalError::NotExecutable { .. })));
        assert_eq!(mode(&package), 0o644);
    }

    #[test]
    fn a_program_that_other_users_can_write_is_refused_wherever_it_was_found() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let package = at("node_modules").join(platform_package().unwrap()).join("bin/sandbox-agent");
        for path in [&at("named"), &at("bin/sandbox-agent"), &package] {
            program(path, 0o757);
        }
        let searches = [
            Search { option: Some(at("named")), ..Search::default() },
            Search { variable: Some(at("named")), ..Search::default() },
            Search { path: Some(at("bin").into()), ..Search::default() },
            Search { node_modules: Some(at("")), ..Search::default() },
        ];
        for mut search in searches {
            let result = search.find();
            assert!(matches!(&result, Err(LocalError::Untrusted { .. })), "{search:?}: {result:?}");
            search.accept_untrusted = true;
            search.find().unwrap();
        }
    }

    #[test]
    fn a_program_that_is_not_found_names_where_it_was_looked_for() {
        let root = tempfile::tempdir().unwrap();
        let searched = |search: &Search| match search.find() {
            Err(LocalError::NotFound { searched }) => searched,
            other => panic!("{other:?}"),
        };
        let mut search = Search { node_modules: Some(root.path().to_owned()), ..Search::default() };
        let all = searched(&search);
        assert_eq!(all.len(), 3);
        assert!(
            all[0].starts_with("SANDBOX_AGENT_BIN") && all[1] == "PATH" && all[2].contains("node_modules")
        );
        search.variable = Some(root.path().join("gone"));
        assert_eq!(searched(&search), [format!("{}/gone (from SANDBOX_AGENT_BIN)", root.path().display())]);
        search.option = Some(root.path().to_owned());
        assert_eq!(searched(&search).len(), 1, "a directory is not a program");
    }
}
