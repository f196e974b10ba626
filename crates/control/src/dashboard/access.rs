//! Decides which requests are served: by their host, the page that they come from, and their token.
//!
//! The token is in the header `Authorization`, which a browser never adds by itself: a request that
//! another page causes has none. Reading may need no token, so two more checks keep other pages
//! from reading: `Host` must name this machine, which defeats names of an attacker that resolve to
//! it (DNS rebinding), and a request with an `Origin` must come from this page.

use super::tokens::{TokenRole, Tokens};
use axum::http::{HeaderMap, Method, header};
use forebay_api::{ErrorKind, Problem};
use std::net::IpAddr;

/// Longest host name that is compared, in bytes.
const HOST_BYTES_MAX: usize = 255;

/// Checks the header `Host`.
///
/// With `only_local`, it must be a loopback address, `localhost`, or `name`, with any port: a
/// tunnel has another one. Otherwise any host will do, because then every request needs a token,
/// which pages of other hosts do not have.
pub(super) fn check_host(headers: &HeaderMap, name: &str, only_local: bool) -> Result<(), Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let refused = |message: &str| {
        let remedy = "open the dashboard by its address, as the daemon's log has it";
        Err(Problem::new(ErrorKind::Forbidden, message, remedy))
    };
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return refused("the request does not have one host");
    };
    let Some(host) = host.to_str().ok().and_then(host_name) else {
        return refused("the host of the request is not valid");
    };
    let is_local = || {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let is_loopback = address.is_ok_and(|address| address.is_loopback());
        is_loopback || ["localhost", name].iter().any(|name| host.eq_ignore_ascii_case(name))
    };
    if only_local && !is_local() {
        return refused("the dashboard is not at this host");
    }
    Ok(())
}

/// The host of `HOST` or `HOST:PORT`; an IPv6 address keeps its brackets.
fn host_name(text: &str) -> Option<&str> {
    let end = match text.starts_with('[') {
        true => text.find(']')? + 1,
        false => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at(end);
    let port = rest.strip_prefix(':').unwrap_or(rest);
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let is_valid = (1..=HOST_BYTES_MAX).contains(&host.len()) && host.chars().all(is_host);
    (is_valid && is_port(port)).then_some(host)
}

/// Checks that a request for the API does not come from another page.
pub(super) fn check_page(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = || {
        let message = "the request comes from another page than the dashboard";
        Err(Problem::new(ErrorKind::Forbidden, message, "send it without an Origin"))
    };
    if let Some(site) = headers.get("sec-fetch-site")
        && !["same-origin", "none"].iter().any(|allowed| site == allowed)
    {
        return refused();
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        if origin.is_none_or(|(_, origin)| Some(origin) != host) {
            return refused();
        }
    }
    Ok(())
}

/// The role of a request, after a check that the method needs no greater one.
pub(super) fn check_role(
    headers: &HeaderMap,
    method: &Method,
    tokens: &Tokens,
) -> Result<TokenRole, Problem> {
    let needed = if method == Method::GET { TokenRole::Look } else { TokenRole::Operate };
    let presented = headers.get(header::AUTHORIZATION);
    let role = match presented {
        None if tokens.is_reading_free() => Some(TokenRole::Look),
        None => None,
        Some(value) => {
            let token = value.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
            match token.and_then(|token| tokens.role_of(token)) {
                Some(role) => Some(role),
                None => {
                    let message = "the token is not valid";
                    let remedy = "use a token of the daemon's token file, or its link";
                    return Err(Problem::new(ErrorKind::Unauthorized, message, remedy));
                }
            }
        }
    };
    match role {
        Some(role) if role >= needed => Ok(role),
        _ if presented.is_none() => {
            let message = "the request needs a token";
            let remedy = "send Authorization: Bearer TOKEN, with a token of the daemon";
            Err(Problem::new(ErrorKind::Unauthorized, message, remedy))
        }
        _ => {
            let message = "the token permits reading only";
            Err(Problem::new(ErrorKind::Forbidden, message, "use a token with the role operate"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        pairs.collect()
    }

    #[test]
    fn a_local_dashboard_is_at_local_hosts_only() {
        let check = |host: &str| check_host(&headers(&[("host", host)]), "cache.test", true);
        for host in
            ["127.0.0.1", "127.0.0.1:1", "127.9.9.9:80", "localhost", "LocalHost:65535", "[::1]:9"]
        {
            assert!(check(host).is_ok(), "{host}");
        }
        assert!(check("cache.test:8080").is_ok());
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1:80",
            "[::2]",
            "::1",
            "",
            ":80",
            "localhost:x",
            "localhost:123456",
            "a b",
            "localhost@evil.example",
        ] {
            assert_eq!(check(host).unwrap_err().kind, ErrorKind::Forbidden, "{host}");
        }
    }

    #[test]
    fn exactly_one_valid_host_is_needed_everywhere() {
        let mut two = headers(&[("host", "localhost")]);
        two.append(header::HOST, HeaderValue::from_static("evil.example"));
        for headers in [headers(&[]), two, headers(&[("host", "a/b")])] {
            assert!(check_host(&headers, "x", true).is_err());
            assert!(check_host(&headers, "x", false).is_err());
        }
        assert!(check_host(&headers(&[("host", "nas.example:8443")]), "0.0.0.0", false).is_ok());
    }

    #[test]
    fn other_pages_are_refused() {
        let host = ("host", "localhost:9");
        let check = |more: (&'static str, &str)| check_page(&headers(&[host, more]));
        assert!(check_page(&headers(&[host])).is_ok());
        for more in [
            ("origin", "http://localhost:9"),
            ("origin", "https://localhost:9"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert!(check(more).is_ok(), "{more:?}");
        }
        for more in [
            ("origin", "http://localhost:10"),
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(check(more).unwrap_err().kind, ErrorKind::Forbidden, "{more:?}");
        }
    }

    #[test]
    fn changes_need_a_token_even_where_reading_is_free() {
        let tokens = Tokens::generate().unwrap();
        let token = format!("Bearer {}", tokens.generated().unwrap());
        let role = |authorization: Option<&str>, method: Method| {
            let pairs: Vec<_> = authorization.map(|it| ("authorization", it)).into_iter().collect();
            check_role(&headers(&pairs), &method, &tokens).map_err(|problem| problem.kind)
        };
        assert_eq!(role(None, Method::GET), Ok(TokenRole::Look));
        for method in [Method::POST, Method::PATCH, Method::DELETE, Method::PUT, Method::OPTIONS] {
            assert_eq!(role(None, method.clone()), Err(ErrorKind::Unauthorized), "{method}");
            assert_eq!(role(Some(&token), method), Ok(TokenRole::Operate));
        }
        for wrong in ["Bearer ", "Bearer x", "Basic x", &token[7..], &format!("{token} ")] {
            assert_eq!(role(Some(wrong), Method::GET), Err(ErrorKind::Unauthorized), "{wrong}");
        }
    }
}
