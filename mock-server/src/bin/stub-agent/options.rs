//! Parses the command line.

use std::{collections::HashMap, path::PathBuf};

use crate::step::Step;

/// How sessions of an earlier process can be reopened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Reopen {
    #[default]
    Both,
    Resume,
    Load,
    Neither,
}

impl Reopen {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "both" => Some(Self::Both),
            "resume" => Some(Self::Resume),
            "load" => Some(Self::Load),
            "neither" => Some(Self::Neither),
            _ => None,
        }
    }

    pub(crate) fn resumes(self) -> bool {
        matches!(self, Self::Both | Self::Resume)
    }

    pub(crate) fn loads(self) -> bool {
        matches!(self, Self::Both | Self::Load)
    }
}

/// The options of the agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Directives to run before any input is read.
    pub(crate) at_start: Vec<Step>,
    /// Directives to run when a request with this method arrives.
    on: HashMap<String, Vec<Step>>,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_sigterm: bool,
    pub(crate) reopen: Reopen,
    /// The folder that stores the history for later processes.
    pub(crate) memory: Option<PathBuf>,
}

impl Options {
    /// Parses the arguments; `None` if they ask for help.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--ignore-eof" => options.ignore_eof = true,
                "--ignore-sigterm" => options.ignore_sigterm = true,
                "--reopen" => {
                    let word = args.next().ok_or("--reopen needs a value")?;
                    options.reopen =
                        Reopen::parse(&word).ok_or(format!("{word:?} is not a value of --reopen"))?;
                }
                "--memory" => {
                    options.memory = Some(args.next().ok_or("--memory needs a folder")?.into());
                }
                "--at-start" => options.at_start.extend(steps(args.next(), &arg)?),
                "--on" => {
                    let method = args.next().ok_or("--on needs a method")?;
                    options.on.entry(method).or_default().extend(steps(args.next(), &arg)?);
                }
                _ => return Err(format!("unknown option {arg}")),
            }
        }
        Ok(Some(options))
    }

    /// Returns the directives for requests of this method.
    pub(crate) fn steps_on(&self, method: &str) -> Option<&[Step]> {
        self.on.get(method).map(Vec::as_slice)
    }
}

fn steps(text: Option<String>, option: &str) -> Result<Vec<Step>, String> {
    let text = text.ok_or_else(|| format!("{option} needs directives"))?;
    Step::parse_all(&text).map_err(|piece| format!("{piece:?} is not a directive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Option<Options>, String> {
        Options::parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn options_carry_directives() {
        let args = ["--at-start", "exit 3", "--on", "initialize", "hang", "--ignore-eof", "--memory", "kept"];
        let options = parse(&args).unwrap().unwrap();
        assert_eq!(options.memory, Some("kept".into()));
        assert_eq!(options.at_start, [Step::Exit(3)]);
        assert_eq!(options.steps_on("initialize"), Some([Step::Hang].as_slice()));
        assert_eq!(options.steps_on("session/new"), None);
        assert!(options.ignore_eof && !options.ignore_sigterm);
    }

    #[test]
    fn sessions_are_reopened_as_configured() {
        let ways =
            [("both", true, true), ("resume", true, false), ("load", false, true), ("neither", false, false)];
        for (word, resumes, loads) in ways {
            let reopen = parse(&["--reopen", word]).unwrap().unwrap().reopen;
            assert_eq!((reopen.resumes(), reopen.loads()), (resumes, loads), "{word}");
        }
        assert_eq!(parse(&[]).unwrap().unwrap().reopen, Reopen::Both);
    }

    #[test]
    fn help_and_errors_are_distinguished() {
        assert_eq!(parse(&["--help"]), Ok(None));
        for args in [
            &["--at-start"][..],
            &["--at-start", "dance"],
            &["--on", "x"],
            &["--loud"],
            &["--reopen", "x"],
            &["--memory"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
