//! Enumerations whose values have names on the command line.

/// Declares an enumeration with a name for each value, a list of all values, and a parser for
/// names. The text before `enum` is the kind of name in the parser's error.
macro_rules! named {
    ($(#[$about:meta])* $what:literal enum $type:ident {
        $($(#[$doc:meta])* $value:ident = $name:literal,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$doc])* $value,)*
        }

        impl $type {
            /// All values, in the order in which they are listed.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// The name in commands and tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|value| value.name() == text);
                let names = || Self::ALL.map(Self::name).join(", ");
                found.ok_or_else(|| format!("no {} '{text}': choose one of {}", $what, names()))
            }
        }
    };
}

pub(crate) use named;
