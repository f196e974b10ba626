//! How a bucket is addressed: behind the host (`https://HOST/BUCKET`), or as a part of its name
//! (`https://BUCKET.HOST`).

use crate::S3Error;
use std::net::IpAddr;

/// Where the name of the bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// Behind the host.
    Path,
    /// In the name of the host.
    Virtual,
}

impl Addressing {
    /// Parses the option.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "path" => Some(Self::Path),
            "virtual" => Some(Self::Virtual),
            _ => None,
        }
    }

    /// Where a bucket of the store at `endpoint` is by default. Every store takes it behind the
    /// host, and Amazon wants it in the name; but Amazon's certificates hold for names without
    /// further dots.
    fn default_for(bucket: &str, endpoint: &str) -> Self {
        let host = host_of(endpoint).trim_end_matches('.');
        let is_amazon = [".amazonaws.com", ".amazonaws.com.cn"].iter().any(|it| host.ends_with(it));
        let fits = !bucket.contains('.') && is_host_name(bucket);
        if is_amazon && fits { Self::Virtual } else { Self::Path }
    }
}

/// The address of the bucket in the store at `endpoint`, if it is in the name of the host.
///
/// # Errors
/// If it is to be there, and bucket and host do not make the name of a host.
pub(crate) fn bucket_endpoint(
    addressing: Option<Addressing>,
    bucket: &str,
    endpoint: &str,
) -> Result<Option<String>, S3Error> {
    let addressing = addressing.unwrap_or_else(|| Addressing::default_for(bucket, endpoint));
    if addressing == Addressing::Path {
        return Ok(None);
    }
    let host = host_of(endpoint);
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    if is_address || !is_host_name(bucket) {
        return Err(S3Error::Addressing { host: format!("{bucket}.{host}") });
    }
    let endpoint = endpoint.trim_end_matches('/');
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    Ok(Some(format!("{scheme}://{bucket}.{rest}")))
}

/// The host in an endpoint, an IPv6 address with its brackets.
fn host_of(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let rest = rest.split('/').next().unwrap_or(rest);
    match rest.rsplit_once(':') {
        Some((host, _)) if !rest.ends_with(']') => host,
        _ => rest,
    }
}

/// Whether a bucket can begin the name of a host.
fn is_host_name(bucket: &str) -> bool {
    bucket.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    fn chosen(addressing: Option<Addressing>, bucket: &str, endpoint: &str) -> Option<String> {
        bucket_endpoint(addressing, bucket, endpoint).unwrap()
    }

    #[test]
    fn amazon_has_the_bucket_in_the_name_and_other_stores_behind_it() {
        let amazon = "https://s3.eu-central-1.amazonaws.com";
        let by_name = "https://vms.s3.eu-central-1.amazonaws.com";
        assert_eq!(chosen(None, "vms", amazon).as_deref(), Some(by_name));
        let china = chosen(None, "vms", "https://s3.cn-north-1.amazonaws.com.cn");
        assert_eq!(china.as_deref(), Some("https://vms.s3.cn-north-1.amazonaws.com.cn"));
        for (bucket, endpoint) in [
            // No certificate of Amazon's has these.
            ("our.vms", amazon),
            ("Old_Bucket", amazon),
            ("vms", "https://s3.example.com"),
            ("vms", "https://amazonaws.com.example"),
            ("vms", "http://127.0.0.1:9000"),
        ] {
            assert_eq!(chosen(None, bucket, endpoint), None, "{bucket} {endpoint}");
        }
        assert_eq!(chosen(Some(Addressing::Path), "vms", amazon), None);
    }

    #[test]
    fn a_store_is_told_the_bucket_by_name_if_that_makes_one() {
        let asked = |bucket, endpoint| {
            bucket_endpoint(Some(Addressing::Virtual), bucket, endpoint)
                .map_err(|error| error.explained())
        };
        let named = asked("our.vms", "http://s3.example.com:9000/");
        assert_eq!(named.unwrap().as_deref(), Some("http://our.vms.s3.example.com:9000"));
        for (bucket, endpoint, host) in [
            ("vms", "http://127.0.0.1:9000", "vms.127.0.0.1"),
            ("vms", "https://[::1]:9000", "vms.[::1]"),
            ("vms", "https://[::1]", "vms.[::1]"),
            ("My_VMs", "https://s3.example.com", "My_VMs.s3.example.com"),
            ("vms-", "https://s3.example.com", "vms-.s3.example.com"),
        ] {
            let said = asked(bucket, endpoint).unwrap_err();
            assert!(said.contains(&format!("'{host}' is not the name of a host")), "{said}");
            assert!(said.contains("addressing=path"), "{said}");
        }
    }
}
