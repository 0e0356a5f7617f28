module tpujob.dev/localcluster/pause

go 1.26.0
