//! Bounds on everything that a server or an agent can send.

/// Bounds on what a client accepts over the wire.
///
/// Every bound has a default that fits real agents. What exceeds a bound fails with a typed error or is reported as
/// an event; it never exhausts the memory of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many [unclaimed requests](crate::requests::UnclaimedRequest) can be claimed at a time. When another one
    /// arrives, the oldest is left to its client. Default 64.
    pub unclaimed_requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { unclaimed_requests: 64 }
    }
}

/// Gives each bound a setter of its name.
macro_rules! setters {
    ($($name:ident: $type:ty, $what:literal,)*) => {
        impl Limits {
            $(
                #[doc = concat!("Sets ", $what, ".")]
                #[must_use]
                pub fn $name(mut self, bound: $type) -> Self {
                    self.$name = bound;
                    self
                }
            )*
        }
    };
}

setters! {
    unclaimed_requests: usize, "how many unclaimed requests can be claimed at a time",
}
