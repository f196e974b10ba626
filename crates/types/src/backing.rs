//! Schemes of backing names.

/// The scheme of a backing name, such as `s3` in `s3://bucket/disk` and `memory` in `memory:1GiB`;
/// `None` for a path.
pub fn scheme_of(name: &str) -> Option<&str> {
    let (scheme, _) = name.split_once(':')?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
    let has_letter_first = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    (has_letter_first && scheme.chars().all(is_allowed)).then_some(scheme)
}

/// The schemes that the backends implement.
pub const SCHEMES: [&str; 9] =
    ["file", "memory", "model", "nbd", "nbd+unix", "nbds", "nbds+unix", "rbd", "s3"];

/// Whether the backing below all layers is memory that is loaded from a file and saved to it.
pub fn is_saved_memory(name: &str) -> bool {
    let inner = below_layers(name);
    inner.starts_with("memory:") && inner.contains('?')
}

/// The backing below all layers. A layer begins with its name and `(`, and ends with the first
/// `):`, because `)` is percent-encoded in its options. Below the layers, `)` may be in a path.
fn below_layers(name: &str) -> &str {
    let mut rest = name;
    while let Some((layer, _)) = rest.split_once('(')
        && layer.chars().all(|c| c.is_ascii_lowercase())
        && let Some((_, inner)) = rest.split_once("):")
    {
        rest = inner;
    }
    rest
}

/// The remedy for a name with a scheme that no backend implements.
pub fn remedy_for_scheme(scheme: &str) -> &'static str {
    match scheme {
        "ceph" => "write rbd:POOL/IMAGE as the backing",
        "iscsi" | "iser" => {
            "log in with `iscsiadm`, and use the /dev/sd device of the disk as the backing"
        }
        "nvme" | "nvme+tcp" => {
            "connect with `nvme connect`, and use the /dev/nvme device as the backing"
        }
        "s3a" | "s3n" => "write s3://BUCKET/PREFIX as the backing",
        "gs" | "http" | "https" | "ftp" | "ssh" | "sftp" => {
            "serve it with a plugin of nbdkit, and use nbd://HOST/EXPORT as the backing"
        }
        "vhost-user" | "vhost" | "ublk" => {
            "clients connect over NBD only; use the disk itself as the backing"
        }
        _ => {
            "give the path of a file or block device, or one of memory:SIZE, model:hdd?size=SIZE, \
             nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, rbd:POOL/IMAGE, s3://BUCKET/PREFIX"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_with_an_image_is_recognised_under_layers() {
        for name in [
            "memory:1GiB?save=/x",
            "delay(read=1ms):memory:1?save=/x",
            "memory:1GiB?save=/a):b",
            "error(every=3):delay(read=1ms):memory:1?save=/a(1):b",
        ] {
            assert!(is_saved_memory(name), "{name}");
        }
        for name in [
            "memory:1GiB",
            "./memory:1?save=/x",
            "model:hdd?size=1",
            "delay():memory:1",
            "./a(1):memory:1?save=/x",
        ] {
            assert!(!is_saved_memory(name), "{name}");
        }
    }

    #[test]
    fn schemes_are_distinguished_from_paths() {
        for (name, scheme) in [
            ("s3://bucket/disk", Some("s3")),
            ("nbd+unix:///x?socket=/y", Some("nbd+unix")),
            ("memory:1GiB", Some("memory")),
            ("/dev/disk/by-path/pci-0000:00", None),
            ("./a:b", None),
            ("disk.img", None),
            ("1:2", None),
            (":x", None),
            ("delay(read=1ms):/x", None),
        ] {
            assert_eq!(scheme_of(name), scheme, "{name}");
        }
    }
}
