//! String enums that keep what they do not know.

/// Defines an enum over strings whose last variant, `Other`, holds any string without a variant of its own.
///
/// Servers grow new values. A closed enum would turn one of them into a message that cannot be decoded, so
/// every string enum that travels is open and writes back exactly the string it was read from, or the first
/// spelling of a variant that has several.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal $(| $alias:literal)*,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        $visibility enum $name {
            $($(#[$variant_meta])* $variant,)+
            /// A value this version does not know, as the server wrote it.
            Other(String),
        }

        impl $name {
            /// The value as it is written on the wire. `Display` shows it safe to print.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($text $(| $alias)* => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::from(text.as_str())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::convert::text::printable(self.as_str()).fmt(f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}

pub(crate) use open_enum;
