//! Setters of options, queries and appends.

/// Defines setters that take the value and return it: `name(argument: Type) => field = value;`.
macro_rules! setters {
    ($type:ident: $($(#[$meta:meta])* $name:ident($($argument:ident: $kind:ty)?) => $($field:ident).+ = $value:expr;)+) => {
        impl $type {
            $(
                $(#[$meta])*
                pub fn $name(mut self, $($argument: $kind)?) -> Self {
                    self.$($field).+ = $value;
                    self
                }
            )+
        }
    };
}
