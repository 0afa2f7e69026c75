//! Decides which commands may run, and which program a command refers to.

use std::collections::HashSet;
use std::env::{join_paths, split_paths};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{TerminalCommand, TerminalError};
use crate::trust::walk;

type Allow = Arc<dyn Fn(&TerminalCommand) -> bool + Send + Sync>;

/// Which commands may run.
#[derive(Clone)]
pub(super) enum Allowed {
    Everything,
    These(Vec<String>),
    If(Allow),
}

/// A program to run, and its `argv[0]`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) name: String,
}

impl Allowed {
    /// Whether commands are restricted. If so, the agent cannot influence which program a name refers to.
    pub(super) fn is_restricted(&self) -> bool {
        !matches!(self, Self::Everything)
    }

    /// Checks a command with the application's function.
    pub(super) fn check(&self, wanted: &TerminalCommand) -> Result<(), TerminalError> {
        match self {
            Self::If(allow) if !allow(wanted) => Err(TerminalError::NotAllowed(wanted.command.clone())),
            _ => Ok(()),
        }
    }

    /// Returns the program of a restricted command. `path` is the search path of this program.
    pub(super) fn program(&self, command: &str, path: Option<&OsStr>) -> Result<Program, TerminalError> {
        let refused = || TerminalError::NotAllowed(command.to_owned());
        let missing = || TerminalError::NoCommand(command.to_owned());
        match self {
            Self::These(these) => {
                let found = locate(command, path);
                let is_named = these.iter().any(|entry| entry == command);
                let Some(found) = found else { return Err(if is_named { missing() } else { refused() }) };
                let programs = these.iter().filter_map(|entry| {
                    let path = locate(entry, path)?;
                    // The program runs from the location where this program finds it. The agent's path is not
                    // used: links can change, and some programs load files from their own directory.
                    is_same(&path, &found).then(|| Program { path, name: entry.clone() })
                });
                programs.max_by_key(|program| program.name == command).ok_or_else(refused)
            }
            Self::If(_) | Self::Everything => {
                // The agent chooses the directory that a relative path starts from.
                if command.contains('/') && !command.starts_with('/') {
                    return Err(refused());
                }
                let path = locate(command, path).ok_or_else(missing)?;
                Ok(Program { path, name: command.to_owned() })
            }
        }
    }
}

/// Removes relative entries from a search path, and those in which an agent can create programs.
pub(super) fn safe_path(path: &OsStr, writable: &[PathBuf]) -> OsString {
    // A directory that cannot be resolved has no programs.
    let is_safe = |directory: &PathBuf| matches!(entry_in(directory, writable), Ok(None));
    let directories = split_paths(path).filter(|directory| directory.is_absolute() && is_safe(directory));
    // No entry of a split path contains a colon.
    join_paths(directories).unwrap_or_default()
}

/// Returns the first entry of an absolute path that is in one of these directories, also through links. A process that
/// can write to the directory can replace the file.
pub(super) fn entry_in(path: &Path, directories: &[PathBuf]) -> io::Result<Option<PathBuf>> {
    walk(path, |entry, _| {
        Ok(directories.iter().any(|directory| entry.starts_with(directory)).then(|| entry.to_owned()))
    })
}

/// Finds the program of a name without a slash, or of an absolute path.
pub(super) fn locate(command: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    if command.starts_with('/') {
        return Some(PathBuf::from(command)).filter(|path| is_executable(path));
    }
    if command.is_empty() || command.contains('/') {
        return None;
    }
    let directories = split_paths(path?).filter(|directory| directory.is_absolute());
    let mut candidates = directories.map(|directory| directory.join(command));
    candidates.find(|candidate| is_executable(candidate))
}

/// Whether two paths refer to one program. The names must match as well, because some programs choose their
/// function by name.
fn is_same(one: &Path, other: &Path) -> bool {
    let same_name = one.file_name().is_some() && one.file_name() == other.file_name();
    same_name
        && match (one.canonicalize(), other.canonicalize()) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Checks the environment variables that an agent sets.
pub(super) fn check_variables(
    allowed: Option<&HashSet<String>>,
    wanted: &TerminalCommand,
) -> Result<(), TerminalError> {
    for (name, value) in &wanted.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(TerminalError::Environment(name.clone()));
        }
        if allowed.is_some_and(|allowed| !allowed.contains(name)) {
            return Err(TerminalError::VariableNotAllowed(name.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::{Allowed, safe_path};
    use crate::tools::TerminalError;

    fn program(place: &TempDir, name: &str) -> PathBuf {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_program_is_one_of_those_that_are_allowed_by_name_and_by_file() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let (git, many) = (program(&place, "bin/git"), program(&place, "bin/many"));
        program(&place, "own/tool");
        program(&place, "agent/git");
        for (from, to) in [("bin/ls", &many), ("bin/sh", &many), ("agent/ls", &many), ("agent/other", &git)] {
            symlink(to, at(from)).unwrap();
        }
        symlink(at("own/tool"), at("agent/tool")).unwrap();
        let path = std::env::join_paths([PathBuf::new(), "relative".into(), at("none"), at("bin")]).unwrap();
        let tool = at("own/tool").display().to_string();
        let allowed =
            Allowed::These(vec!["git".into(), "ls".into(), tool.clone(), "gone".into(), "./near".into()]);
        let found = |command: &str| {
            let program = allowed.program(command, Some(&path))?;
            Ok::<_, TerminalError>((program.path, program.name))
        };
        let shown = |name: &str| at(name).display().to_string();
        assert_eq!(found("git").unwrap(), (git.clone(), "git".to_owned()));
        assert_eq!(found(&shown("bin/git")).unwrap(), (git, "git".to_owned()), "found by path");
        assert_eq!(found("ls").unwrap(), (at("bin/ls"), "ls".to_owned()), "found by name");
        assert_eq!(
            found(&shown("agent/ls")).unwrap(),
            (at("bin/ls"), "ls".to_owned()),
            "runs from its own location"
        );
        assert_eq!(found(&shown("agent/tool")).unwrap(), (at("own/tool"), tool.clone()));
        assert_eq!(found(&tool).unwrap(), (at("own/tool"), tool));
        assert!(matches!(found("gone"), Err(TerminalError::NoCommand(_))));
        let refused = [
            shown("agent/git"),
            shown("agent/other"),
            shown("bin/sh"),
            shown("bin/many"),
            shown("bin/../agent/git"),
            "sh".into(),
            "many".into(),
            "tool".into(),
            "./git".into(),
            "bin/git".into(),
            "./near".into(),
            "near".into(),
            String::new(),
            ".".into(),
            "..".into(),
            "/".into(),
            "GIT".into(),
            "git ".into(),
            "git\0".into(),
        ];
        for command in refused {
            let result = found(&command);
            let is_refused = matches!(result, Err(TerminalError::NotAllowed(_)))
                // It is allowed, but the program does not exist.
                || (command == "./near" && matches!(result, Err(TerminalError::NoCommand(_))));
            assert!(is_refused, "{command:?}: {result:?}");
        }
    }

    #[test]
    fn nothing_in_the_search_path_depends_on_the_directory() {
        for (path, expected) in [("", ""), (":/bin::bin:/usr/bin:.", "/bin:/usr/bin"), ("..", "")] {
            assert_eq!(safe_path(path.as_ref(), &[]), expected, "{path}");
        }
    }

    #[test]
    fn nothing_in_the_search_path_is_in_a_directory_of_the_agent() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().canonicalize().unwrap();
        let at = |name: &str| real.join(name);
        for directory in ["root/bin", "bin", "rooted"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        symlink(at("root/bin"), at("link")).unwrap();
        symlink(at("bin"), at("root/out")).unwrap();
        let all = ["bin", "root", "root/bin", "link", "root/out", "none", "rooted"].map(at);
        let path = std::env::join_paths(all).unwrap();
        let expected = std::env::join_paths([at("bin"), at("rooted")]).unwrap();
        assert_eq!(safe_path(&path, &[at("root")]), expected);
    }
}
