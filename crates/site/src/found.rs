//! What a source of hosts has answered.

use forebay_config::HttpAddress;

/// What a source has named.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundHosts {
    pub(crate) addresses: Vec<HttpAddress>,
    /// Why some may be missing.
    pub(crate) problem: Option<String>,
}

impl From<Vec<HttpAddress>> for FoundHosts {
    fn from(addresses: Vec<HttpAddress>) -> Self {
        Self { addresses, problem: None }
    }
}
