use super::kind::Fault;

/// A fault with its conditions.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a rule does nothing until it is injected"]
pub struct Rule {
    fault: Fault,
    method: Option<String>,
    verb: Option<String>,
    path: Option<String>,
    skip: usize,
    times: Option<usize>,
}

impl Rule {
    /// Creates a rule without conditions.
    pub fn new(fault: Fault) -> Self {
        Self { fault, method: None, verb: None, path: None, skip: 0, times: None }
    }

    /// Fires at most `count` times.
    pub fn times(mut self, count: usize) -> Self {
        self.times = Some(count);
        self
    }

    /// Skips the first `count` matches.
    pub fn skip(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Fires only for messages with this JSON-RPC method.
    pub fn on_method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// Fires only for requests with this HTTP method.
    pub fn on_verb(mut self, verb: impl Into<String>) -> Self {
        self.verb = Some(verb.into());
        self
    }

    /// Fires only for requests whose path starts with `prefix`.
    pub fn on_path(mut self, prefix: impl Into<String>) -> Self {
        self.path = Some(prefix.into());
        self
    }

    /// Returns the fault of this rule.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Returns how many matches are skipped, and how often it may fire.
    pub(super) fn budget(&self) -> (usize, Option<usize>) {
        (self.skip, self.times)
    }

    /// Whether the rule depends on the JSON-RPC method, which is known only after the body was read.
    pub(super) fn needs_method(&self) -> bool {
        self.method.is_some()
    }

    /// Whether the conditions on HTTP method, path and JSON-RPC method hold.
    pub(super) fn fits(&self, verb: &str, path: &str, method: Option<&str>) -> bool {
        self.verb.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(verb))
            && self.path.as_deref().is_none_or(|prefix| path.starts_with(prefix))
            && self.method.as_deref().is_none_or(|wanted| Some(wanted) == method)
    }
}

impl From<Fault> for Rule {
    fn from(fault: Fault) -> Self {
        Self::new(fault)
    }
}

/// The id of an injected rule, used to deactivate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleId(pub(super) u64);
