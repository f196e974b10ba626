//! The hosts that etcd names, by its JSON interface (`/v3/kv/range`, etcd 3.4 and later).

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

/// The addresses in an answer of etcd.
///
/// # Errors
/// The answer is none of etcd, or a value is no address that a token may be sent to; the text says
/// which.
pub(crate) fn addresses(body: &[u8]) -> Result<Vec<HttpAddress>, String> {
    let range: EtcdRange = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let addresses = range.kvs.iter().map(|entry| {
        let value = decoded(&entry.value);
        let address = value.parse::<HttpAddress>().ok().filter(HttpAddress::is_private);
        address.ok_or_else(|| {
            let key = decoded(&entry.key);
            format!("the key {key:?} has no address https://HOST:PORT, but {value:?}")
        })
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_asked_for_as_a_range() {
        let request: serde_json::Value = serde_json::from_slice(&range("hosts/")).unwrap();
        assert_eq!(request, json!({ "key": "aG9zdHMv", "range_end": "aG9zdHMw" }));
    }

    #[test]
    fn values_are_addresses_and_anything_else_is_named() {
        let answer = |value: &str| {
            let value = BASE64_STANDARD.encode(value);
            json!({ "header": {}, "kvs": [{ "key": "aG9zdHMvMQ==", "value": value }] }).to_string()
        };
        let found = addresses(answer("https://nas1:8443\n").as_bytes()).unwrap();
        assert_eq!(found[0].to_string(), "https://nas1:8443");
        assert_eq!(addresses(b"{\"header\": {}}"), Ok(vec![]));
        for wrong in ["nas1", "http://nas1:8443", ""] {
            let error = addresses(answer(wrong).as_bytes()).unwrap_err();
            assert!(error.contains("hosts/1"), "{error}");
        }
        assert!(addresses(b"").is_err() && addresses(b"{\"kvs\": 1}").is_err());
    }
}
