//! The hosts that etcd names, by its JSON interface (`/v3/kv/range`, etcd 3.4 and later).

use crate::found::FoundHosts;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use forebay_config::HttpAddress;
use serde::Deserialize;
use serde_json::json;

/// Where etcd answers ranges.
pub(crate) const RANGE: &str = "/v3/kv/range";

/// The request for all keys that begin with `prefix`.
pub(crate) fn range(prefix: &str) -> Vec<u8> {
    // The key after all those with the prefix: its last byte, which is ASCII, plus one.
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let [key, end] = [prefix.as_bytes(), &end].map(|bytes| BASE64_STANDARD.encode(bytes));
    json!({ "key": key, "range_end": end }).to_string().into_bytes()
}

#[derive(Deserialize)]
struct EtcdRange {
    #[serde(default)]
    kvs: Vec<EtcdEntry>,
}

#[derive(Deserialize)]
struct EtcdEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

fn decoded(text: &str) -> String {
    let bytes = BASE64_STANDARD.decode(text).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The addresses in an answer of etcd, and which value is no address that a token may be sent to.
///
/// # Errors
/// The answer is none of etcd.
pub(crate) fn addresses(body: &[u8]) -> Result<FoundHosts, String> {
    let range: EtcdRange = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let mut found = FoundHosts::default();
    for entry in &range.kvs {
        let value = decoded(&entry.value);
        match value.parse::<HttpAddress>() {
            Ok(address) if address.is_private() => found.addresses.push(address),
            _ => {
                let key = decoded(&entry.key);
                let problem = format!("the key {key:?} has no https://HOST:PORT, but {value:?}");
                found.problem.get_or_insert(problem);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_asked_for_as_a_range() {
        let request: serde_json::Value = serde_json::from_slice(&range("hosts/")).unwrap();
        assert_eq!(request, json!({ "key": "aG9zdHMv", "range_end": "aG9zdHMw" }));
    }

    /// An answer of etcd with these values.
    fn answer(values: &[&str]) -> Vec<u8> {
        let entries = values
            .iter()
            .map(|value| json!({ "key": "aG9zdHMvMQ==", "value": BASE64_STANDARD.encode(value) }));
        json!({ "header": {}, "kvs": entries.collect::<Vec<_>>() }).to_string().into_bytes()
    }

    #[test]
    fn values_are_addresses_and_anything_else_is_named() {
        let found = addresses(&answer(&["https://nas1:8443\n"])).unwrap();
        assert_eq!(found.addresses[0].to_string(), "https://nas1:8443");
        assert_eq!(addresses(b"{\"header\": {}}"), Ok(FoundHosts::default()));
        for wrong in ["nas1", "http://nas1:8443", ""] {
            let found = addresses(&answer(&[wrong, "https://nas2:8443"])).unwrap();
            assert!(found.problem.unwrap().contains("hosts/1"));
            assert_eq!(found.addresses.len(), 1, "the others are taken");
        }
        assert!(addresses(b"").is_err() && addresses(b"{\"kvs\": 1}").is_err());
    }
}
