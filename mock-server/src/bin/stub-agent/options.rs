//! The command line.

use std::collections::HashMap;

use crate::step::Step;

/// What the agent was told when it was started.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Done before any input is read.
    pub(crate) at_start: Vec<Step>,
    /// Done when a request with this method arrives.
    on: HashMap<String, Vec<Step>>,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_sigterm: bool,
}

impl Options {
    /// Reads the arguments; `None` when they ask for help.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--ignore-eof" => options.ignore_eof = true,
                "--ignore-sigterm" => options.ignore_sigterm = true,
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

    /// The directives for requests of this method.
    pub(crate) fn steps_on(&self, method: &str) -> Option<&[Step]> {
        self.on.get(method).map(Vec::as_slice)
    }
}

fn steps(text: Option<String>, option: &str) -> Result<Vec<Step>, String> {
    let text = text.ok_or_else(|| format!("{option} needs directives"))?;
    Step::parse_all(&text).map_err(|piece| format!("{piece:?} is no directive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Option<Options>, String> {
        Options::parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn options_carry_directives() {
        let args = ["--at-start", "exit 3", "--on", "initialize", "hang", "--ignore-eof"];
        let options = parse(&args).unwrap().unwrap();
        assert_eq!(options.at_start, [Step::Exit(3)]);
        assert_eq!(options.steps_on("initialize"), Some([Step::Hang].as_slice()));
        assert_eq!(options.steps_on("session/new"), None);
        assert!(options.ignore_eof && !options.ignore_sigterm);
    }

    #[test]
    fn help_and_mistakes_are_told_apart() {
        assert_eq!(parse(&["--help"]), Ok(None));
        for args in [&["--at-start"][..], &["--at-start", "dance"], &["--on", "x"], &["--loud"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
