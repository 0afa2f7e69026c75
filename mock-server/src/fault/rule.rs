use super::kind::Fault;

/// A fault with the conditions under which it strikes.
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
    /// A rule without conditions.
    pub fn new(fault: Fault) -> Self {
        Self { fault, method: None, verb: None, path: None, skip: 0, times: None }
    }

    /// Strikes at most `count` times.
    pub fn times(mut self, count: usize) -> Self {
        self.times = Some(count);
        self
    }

    /// Lets the first `count` occasions pass.
    pub fn skip(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    /// Strikes only messages with this JSON-RPC method.
    pub fn on_method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// Strikes only requests with this HTTP verb.
    pub fn on_verb(mut self, verb: impl Into<String>) -> Self {
        self.verb = Some(verb.into());
        self
    }

    /// Strikes only requests whose path starts with `prefix`.
    pub fn on_path(mut self, prefix: impl Into<String>) -> Self {
        self.path = Some(prefix.into());
        self
    }

    /// The fault of this rule.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// How often it may strike and how many occasions pass before.
    pub(super) fn budget(&self) -> (usize, Option<usize>) {
        (self.skip, self.times)
    }

    /// Whether the rule looks at the JSON-RPC method, which is known only after the body was read.
    pub(super) fn needs_method(&self) -> bool {
        self.method.is_some()
    }

    /// Whether the conditions on verb, path and method hold.
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

/// Names one injected rule, to lift it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleId(pub(super) u64);
