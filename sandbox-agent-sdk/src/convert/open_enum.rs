//! String enums that preserve unknown values.

/// Defines a string enum whose last variant, `Other`, holds any unknown string.
///
/// Servers add new values over time. With a closed enum, a new value would make a whole message undecodable.
/// Every string enum on the wire is therefore open. It serializes to the string that it was parsed from, or
/// to the first spelling of a variant with several spellings.
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
            /// An unknown value, as the server sent it.
            Other(String),
        }

        impl $name {
            /// Returns the wire value. `Display` escapes it and is safe to print.
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

        impl crate::convert::lenient::Lenient<'_> for $name {
            fn text(text: &str) -> Option<Self> {
                Some(Self::from(text))
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
